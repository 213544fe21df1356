"""
Run by test_progress.py, on a pseudo-terminal too: trains the tiny model and shows its progress.

    python tests/progress_worker.py MODEL_PATH OUTPUT_DIR
"""

import sys

import tiny

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.progress import training_progress


def make_trainer(model_path: str, output_dir: str, **overrides) -> PODSGRPOTrainer:
    arguments = tiny.default_arguments(output_dir, num_rollouts=8, max_steps=4, eval_strategy="steps", eval_steps=2)
    return PODSGRPOTrainer(
        model=model_path,
        reward_funcs=tiny.distinct_characters,
        args=PODSGRPOConfig(**arguments | overrides),
        train_dataset=tiny.make_dataset(),
        eval_dataset=tiny.make_dataset(4),
    )


def main(model_path: str, output_dir: str) -> None:
    trainer = make_trainer(model_path, output_dir)
    with training_progress(trainer):
        trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
