"""
Overrides as users write them, in a subclass or on an instance. Run under torchrun by test_overrides.py.

    python -m torch.distributed.run --nproc_per_node 2 tests/overrides_worker.py MODEL_PATH OUTPUT_DIR METHOD ...
"""

import json
import sys
from pathlib import Path

import tiny
import torch
from trl import GRPOConfig, GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.cli.launch import end_process_group

seen: list[int] = []  # rows of each call


def _generate(call, prompts):
    """Gives the completions to other prompts, tokens and text."""
    seen.append(len(prompts))
    generated = list(call(prompts))
    for column in (1, 3):  # completion ids, completions
        generated[column] = generated[column][::-1]
    return tuple(generated)


def _generate_single_turn(call, prompt_ids, *args, **kwargs):
    """Cuts the first token."""
    seen.append(len(prompt_ids))
    completion_ids, *others = call(prompt_ids, *args, **kwargs)
    return [ids[1:] or ids for ids in completion_ids], *others


def _calculate_rewards(call, inputs, *args):
    seen.append(len(inputs))
    return -call(inputs, *args)


def _compute_loss(call, model, inputs):
    seen.append(len(inputs["completion_ids"]))
    return 0.5 * call(model, inputs)


def overridden(kind: type, name: str, patched: bool, model_path: str, output_dir: Path, **arguments) -> dict:
    """The parameters after a training in which one method is overridden, or none."""
    usual = {"optim": "sgd", "learning_rate": 1e-2, "max_grad_norm": 0.0}
    if kind is PODSGRPOTrainer:
        usual |= {"zero_variance": "train"}
    config = PODSGRPOConfig if kind is PODSGRPOTrainer else GRPOConfig
    trainer = (kind if patched or not name else subclass(kind, name))(
        model=model_path,
        reward_funcs=tiny.distinct_characters,
        args=config(**tiny.default_arguments(output_dir, **usual | arguments)),
        train_dataset=tiny.make_dataset(),
    )
    if patched and name:
        method, override = getattr(trainer, name), globals()[name]
        setattr(trainer, name, lambda *args, **kwargs: override(method, *args, **kwargs))
    seen.clear()
    trainer.train()
    return tiny.trained_parameters(trainer)


def subclass(kind: type, name: str) -> type:
    """A subclass that overrides one method."""
    override = globals()[name]

    def method(self, *args, **kwargs):
        return override(getattr(super(made, self), name), *args, **kwargs)

    made = type(f"Overriding{kind.__name__}", (kind,), {name: method})
    return made


def main(model_path: str, output_dir: str, *names: str) -> None:
    sizes = {"per_device_train_batch_size": 4, "ddp_backend": "gloo", "ddp_timeout": 60}
    for name in names:
        for kind in (PODSGRPOTrainer, GRPOTrainer):
            own = {"num_rollouts": 4} if kind is PODSGRPOTrainer else {}
            end = overridden(kind, name, False, model_path, Path(output_dir), **sizes, **own)
            if torch.distributed.get_rank() == 0:
                torch.save(end, Path(output_dir) / f"{kind.__name__}.{name}.pt")
        overridden(PODSGRPOTrainer, name, True, model_path, Path(output_dir), num_rollouts=8, **sizes)
        if torch.distributed.get_rank() == 0:
            (Path(output_dir) / f"{name}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process_group()
