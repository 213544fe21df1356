"""
Run under torchrun by test_distributed.py: trains each named case and writes what the test compares.

    python -m torch.distributed.run --nproc_per_node W tests/distributed_worker.py MODEL_PATH OUTPUT_DIR CASE ...
"""

import json
import os
import pickle
import sys
from pathlib import Path
from zlib import crc32

import tiny
import torch
from accelerate.utils import gather_object
from peft import LoraConfig
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.cli.launch import end_process_group
from trl_pods.downsampling import rows

# 8 trained rows per generation batch over all processes. With m = 4 there are P = 2 prompts, with m = 8 only one.
CASES = {
    "own_randomness": {
        **{"num_generations": 4, "num_rollouts": 8, "zero_variance": "train"},
        "down_sampling": "distributed_rule.shuffled",
    },
    "two_groups": {"num_generations": 4, "num_rollouts": 8},
    "one_large_group": {"num_generations": 8, "num_rollouts": 64},
    "one_group": {"num_generations": 8, "num_rollouts": 16, "beta": 0.1},
    "all_statistics": {"num_generations": 4, "num_rollouts": 8, "advantage_statistics": "all", "loss_type": "grpo"},
    "random_rule": {"num_generations": 4, "num_rollouts": 8, "down_sampling": "random", "log_completions": True},
    "grpo": {"num_generations": 4},
    "n_equal_m": {"num_generations": 4, "num_rollouts": 4, "zero_variance": "train"},
    "grpo_lora": {"num_generations": 4, "beta": 0.1, "num_iterations": 2, "steps_per_generation": 2},
    "n_equal_m_lora": {
        "num_generations": 4,
        "num_rollouts": 4,
        "beta": 0.1,
        "num_iterations": 2,
        "steps_per_generation": 2,
    },
}


def deterministic_rollouts(prompts, trainer) -> dict:
    """Completions that depend on the prompt, the place within its group and the step, not on the process."""
    first = trainer.accelerator.process_index * len(prompts)
    tokenizer = trainer.processing_class
    texts = []
    for i, prompt in enumerate(prompts):
        place = (first + i) % trainer.num_generations
        key = crc32(f"{prompt}/{place}/{trainer.state.global_step}".encode())
        texts.append("".join(tiny.CHARACTERS[(key >> shift) % 62] for shift in range(0, 4 + key % 20, 4)))
    completion_ids = [tokenizer(text)["input_ids"] for text in texts]
    return {
        "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
        "completion_ids": completion_ids,
        "logprobs": [[0.0] * len(ids) for ids in completion_ids],
        "label": texts,
    }


def labelled_reward(completions, label, target, log_extra, **kwargs) -> list[float]:
    assert completions == label, "extra fields are out of line with their rows"
    log_extra("label", label)
    return [float(len(set(text)) + text.count("a") + value / 100) for text, value in zip(completions, target)]


def recording(trainer_class):
    class Recording(trainer_class):
        kept: list = []

        def _compute_loss(self, model, inputs):
            trained = zip(inputs["completion_ids"].tolist(), inputs["completion_mask"].sum(1).tolist(), strict=True)
            self.kept = [*self.kept, [ids[:length] for ids, length in trained]]
            return super()._compute_loss(model, inputs)

    return Recording


def recording_exchange(exchanged: list[dict]):
    """What gathers the kept rows, and notes how many this process sends and how large they are."""

    def gather(rows: list[dict]) -> list[dict]:
        sizes = [len(pickle.dumps(row)) for row in rows]
        exchanged.append({"rows": len(rows), "bytes": len(pickle.dumps(rows)), "largest row": max(sizes, default=0)})
        return gather_object(rows)

    return gather


def main(model_path: str, output_dir: str, *cases: str) -> None:
    for case in cases:
        exchanged: list[dict] = []
        rows.gather_object = recording_exchange(exchanged)
        is_grpo = case.startswith("grpo")
        deterministic = not (is_grpo or case.startswith("n_equal_m"))
        arguments = CASES[case]
        world_size = int(os.environ["WORLD_SIZE"])
        batch = 8 // world_size // arguments.get("steps_per_generation", 1)
        config = (GRPOConfig if is_grpo else PODSGRPOConfig)(
            **tiny.default_arguments(
                Path(output_dir) / case,
                per_device_train_batch_size=batch,
                max_steps=4,
                max_completion_length=8,
                ddp_backend="gloo",
                ddp_timeout=60,
                # Adam would divide by gradients that are zero but for rounding, and so show the rounding.
                optim="sgd" if deterministic else "adamw_torch",
                **arguments,
            )
        )
        set_seed(42)  # TRL 1.10 makes the LoRA weights before it sets the seed
        trainer = recording(GRPOTrainer if is_grpo else PODSGRPOTrainer)(
            model=model_path,
            reward_funcs=labelled_reward if deterministic else tiny.distinct_characters,
            args=config,
            train_dataset=tiny.make_dataset(),
            peft_config=LoraConfig(r=4, target_modules="all-linear") if case.endswith("lora") else None,
            rollout_func=deterministic_rollouts if deterministic else None,
        )
        trainer.train()
        rank = trainer.accelerator.process_index
        result = {"kept": trainer.kept, "log": trainer.state.log_history, "exchanged": exchanged}
        (Path(output_dir) / f"{case}.{world_size}.{rank}.json").write_text(json.dumps(result))
        if rank == 0:
            torch.save(tiny.trained_parameters(trainer), Path(output_dir) / f"{case}.{world_size}.pt")


def thread_names() -> list[str]:
    return [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]


if __name__ == "__main__":
    main(*sys.argv[1:])
    threads = {"training": thread_names()}
    end_process_group()
    threads["ended"] = thread_names()
    name = f"threads.{os.environ['WORLD_SIZE']}.{os.environ['RANK']}.json"
    (Path(sys.argv[2]) / name).write_text(json.dumps(threads))
