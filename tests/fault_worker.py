"""
Run under torchrun by test_faults.py: trains with a fault on one process, case by case, and writes what each has met.

    python -m torch.distributed.run --nproc_per_node W tests/fault_worker.py MODEL_PATH OUTPUT_DIR
"""

import json
import logging
import math
import os
import resource
import sys
from pathlib import Path

import tiny
import torch

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.cli.launch import end_process_group

RANK = int(os.environ["RANK"])


def only_on(rank: int, fault):
    """A reward function that is at fault on one process, from the second generation batch on."""
    calls = []

    def reward(completions, **kwargs):
        calls.append(len(completions))
        rewards = tiny.distinct_characters(completions)
        return fault(rewards, **kwargs) if rank == RANK and len(calls) > 1 else rewards

    return reward


def raising(*args, **kwargs):
    raise ValueError("no judge")


async def raising_async(completions, **kwargs):
    return raising() if RANK == 1 else tiny.distinct_characters(completions)


def one_short(rewards, **kwargs):
    return rewards[:-1]


def not_numbers(rewards, **kwargs):
    return [math.nan, math.inf, None, *rewards[3:]]


def short_column(rewards, log_extra, **kwargs):
    log_extra("note", ["too few"])
    return rewards


def rule_raising_on(rank: int):
    def rule(rewards, num_kept):
        if rank == RANK:
            raise KeyError("no rule")
        return torch.arange(num_kept).expand(len(rewards), -1)

    return rule


rule_raising_on_0, rule_raising_on_1 = rule_raising_on(0), rule_raising_on(1)


def rule_with_rubbish(rewards, num_kept):
    return torch.full((len(rewards), num_kept), 10**6)


def rollouts(**change):
    """A `rollout_func` that is at fault on the second process."""

    def rollout_func(prompts, trainer):
        tokenizer = trainer.processing_class
        result = {"prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts]}
        result["completion_ids"] = [[5 + i % 7, 6 + i % 3, tokenizer.eos_token_id] for i in range(len(prompts))]
        result["logprobs"] = [[-1.0] * 3 for _ in prompts]
        result["env_mask"] = [[1] * 3 for _ in prompts]
        for key, changed in change.items() if RANK == 1 else ():
            result[key] = changed(result[key])
        return result

    return rollout_func


def limit_files(rewards, **kwargs):
    """From now on, this process can write files of 1,000 bytes: to the rest, this is as if the disk were full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    return rewards


CASES = {
    "reward_raises": {"reward_funcs": only_on(1, raising)},
    "first_reward_raises": {"reward_funcs": only_on(0, raising)},
    "async_reward_raises": {"reward_funcs": [tiny.distinct_characters, raising_async]},
    "too_few_rewards": {"reward_funcs": only_on(1, one_short)},
    "no_numbers": {"reward_funcs": only_on(1, not_numbers)},
    "short_column": {"reward_funcs": only_on(1, short_column), "log_completions": True},
    "short_column_of_all": {"reward_funcs": only_on(1, short_column), "log_completions": True, "num_rollouts": 4},
    "short_env_mask": {"rollout_func": rollouts(env_mask=lambda values: values[:-1])},
    "rule_raises": {"down_sampling": "fault_worker.rule_raising_on_0"},
    "rule_raises_elsewhere": {"down_sampling": "fault_worker.rule_raising_on_1"},
    "rule_with_rubbish": {"down_sampling": "fault_worker.rule_with_rubbish"},
    "rollouts_raise": {"rollout_func": rollouts(prompt_ids=raising)},
    "too_few_rollouts": {"rollout_func": rollouts(completion_ids=lambda values: values[:-1])},
    "empty_completion": {"rollout_func": rollouts(completion_ids=lambda values: [[], *values[1:]])},
    "no_completions": {"rollout_func": rollouts(completion_ids=lambda values: [])},
    "short_logprobs": {
        "rollout_func": rollouts(logprobs=lambda values: [[-1.0], *values[1:]]),
        "off_policy_mask_threshold": 1.0,
    },
    "unused_logprobs": {"rollout_func": rollouts(logprobs=lambda values: [[] for _ in values])},
    "nan_logprobs": {
        "rollout_func": rollouts(logprobs=lambda values: [[math.nan] * 3, *values[1:]]),
        "off_policy_mask_threshold": 1.0,
    },
    "full_disk_for_checkpoints": {
        "reward_funcs": only_on(1, limit_files),
        "steps_per_generation": 2,  # the generation batch is saved with the checkpoint
        "save_strategy": "steps",
        "save_steps": 1,
    },
    "full_disk": {"reward_funcs": only_on(0, limit_files), "log_completions": True},
}


def meet(case: str, model_path: str, output_dir: Path) -> dict:
    """Train, and say what came of it."""
    options = dict(CASES[case])
    rollout_func = options.pop("rollout_func", None)
    trainer = PODSGRPOTrainer(
        model=model_path,
        reward_funcs=options.pop("reward_funcs", tiny.distinct_characters),
        args=PODSGRPOConfig(
            **tiny.default_arguments(output_dir / case, per_device_train_batch_size=4, num_rollouts=8, max_steps=3)
            | {"ddp_backend": "gloo", "ddp_timeout": 60}
            | options
        ),
        train_dataset=tiny.make_dataset(),
        rollout_func=rollout_func,
    )
    try:
        trainer.train()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "steps": trainer.state.global_step}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    is_finite = all(value.isfinite().all() for value in tiny.trained_parameters(trainer).values())
    return {"error": None, "steps": trainer.state.global_step, "is_finite": is_finite}


def main(model_path: str, output_dir: str) -> None:
    warnings = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("trl_pods").addHandler(handler)
    for case in CASES:
        warnings.clear()
        met = meet(case, model_path, Path(output_dir)) | {"warnings": warnings[:]}
        (Path(output_dir) / f"{case}.{os.environ['WORLD_SIZE']}.{RANK}.json").write_text(json.dumps(met))


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process_group()
