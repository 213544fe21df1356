"""
Run under torchrun by test_wall_clock.py: trains with a clock that runs differently on each process.

    python -m torch.distributed.run --nproc_per_node W tests/wall_clock_worker.py MODEL_PATH OUTPUT_DIR
"""

import json
import os
import sys
from pathlib import Path

import tiny

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.cli.launch import end_process_group
from trl_pods.wall_clock import WallClockCallback


def main(model_path: str, output_dir: str) -> None:
    rank, now = int(os.environ["RANK"]), [0.0]

    def reward(completions, **kwargs):
        now[0] += [10.0, 0.1, 55.0][rank]  # per generation batch; the main process decides
        return tiny.distinct_characters(completions)

    trainer = PODSGRPOTrainer(
        model=model_path,
        reward_funcs=reward,
        args=PODSGRPOConfig(
            **tiny.default_arguments(
                output_dir, per_device_train_batch_size=4, max_steps=50, num_rollouts=8, ddp_backend="gloo"
            )
            | {"ddp_timeout": 60, "per_device_eval_batch_size": 4}
        ),
        train_dataset=tiny.make_dataset(),
        eval_dataset=tiny.make_dataset(2),
    )
    WallClockCallback(max_seconds=60, save_seconds=25, eval_seconds=25, clock=lambda: now[0]).attach(trainer)
    trainer.train()
    (Path(output_dir) / f"{rank}.json").write_text(json.dumps(trainer.state.log_history))


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process_group()
