"""
What `trl-pods grpo` runs: a recipe's model, data and rewards through `PODSGRPOTrainer`.

It takes the arguments of `trl grpo`, the fields of `PODSGRPOConfig` and a few of its own, see `PODSScriptArguments`.
Where they ask for several processes it starts them through `accelerate launch`, each of which runs this module.
"""

import logging
import os
import signal
import sys
import warnings
from typing import NoReturn

from ..checks.errors import INTERRUPTED, exit_on_user_error
from ..progress import training_progress
from ..trainers import PODSGRPOTrainer
from .arguments import Arguments, RecipeParser
from .build import checkpoint_to_resume, load_data, load_rewards, load_setup, make_trainer
from .dry_run import report
from .launch import end_process_group
from .options import remember


def run(arguments: list[str], prog: str | None = None) -> PODSGRPOTrainer | None:
    """Parse the arguments and train."""
    parser = RecipeParser(prog)
    remember(parser)
    parsed = parser.parse(arguments)
    if parsed.script.dry_run:
        report(parsed)
        return None
    if parsed.launch.needed:
        with parsed.explained():  # what is quick to check, before processes are started
            load_setup(parsed)
            load_rewards(parsed)
        parsed.launch.launch(arguments)
        return None
    with parsed.explained():
        set_up(parsed)
        trainer = make_trainer(parsed, load_data(parsed))
        checkpoint = checkpoint_to_resume(parsed)
    _train(trainer, parsed, checkpoint)
    return trainer


def set_up(parsed: Arguments) -> None:
    """Make what the recipe needs, by its `setup_func`, if it has one."""
    make = load_setup(parsed)
    if make is not None:
        with parsed.training.main_process_first(desc="setup"):
            if parsed.training.process_index == 0:
                make()


def _train(trainer: PODSGRPOTrainer, parsed: Arguments, checkpoint: str | None) -> None:
    args = trainer.args
    trainer.how_to_resume = "run the same command with `--resume_from_checkpoint true`"
    signal.signal(signal.SIGINT, _interrupt_once)
    try:
        with training_progress(trainer):
            trainer.train(resume_from_checkpoint=checkpoint)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    trainer.save_model(args.output_dir)
    trainer.save_state()  # the log, as trainer_state.json
    trainer.create_model_card()  # for adapters, in place of the blank one that PEFT has just written
    trainer.accelerator.print(f"Saved the model and the log (trainer_state.json) in {args.output_dir}.")
    if args.push_to_hub:
        trainer.push_to_hub(dataset_name=parsed.script.dataset_name)


def _interrupt_once(*args) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a launcher passes on what this process has got already
    raise KeyboardInterrupt


def main(arguments: list[str], prog: str) -> None:
    """Run the script as a command: what a user can mend is said in a line, without a traceback."""
    set_up_output()
    with exit_on_user_error(prog):
        run(arguments, prog)
    end_process_group()


def set_up_output() -> None:
    """Show what trl_pods logs, and not what transformers and TRL say of their own deprecations."""
    logging.basicConfig(format="%(message)s")
    is_main_process = os.environ.get("RANK", "0") == "0"
    logging.getLogger("trl_pods").setLevel(logging.INFO if is_main_process else logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|accelerate)\.")


if __name__ == "__main__":
    main(sys.argv[1:], prog="trl-pods grpo")
