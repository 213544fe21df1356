"""
The regimes of `bench_time_to_accuracy.py`: where training starts, the sizes, the reward, the task.

A name says it all: `rotate_matrix/start5/m4/n64`, and then `/noisy` or `/vllm`.
"""

import json
from dataclasses import dataclass

TASKS = {  # settings of the task, and the tokens of its longest answer and end
    "rotate_matrix": ({"min_n": 2, "max_n": 2, "min_rotations": 1, "max_rotations": 1}, 9),
    "palindrome_generation": ({"min_length": 3, "max_length": 5}, 7),
    "spell_backward": ({"min_word_len": 3, "max_word_len": 5}, 7),
}
NUM_PROMPTS = 2  # per optimizer step
NUM_EVALUATED = 256  # held-out prompts
NUM_EVAL_SAMPLES = {"transformers": 4, "vllm": 1}  # of each; vLLM takes 5 ms for one on a CPU


@dataclass(frozen=True)
class Regime:
    """
    A setting in which methods are compared.

    Args:
        task (`str`):
            Task of reasoning-gym.
        start (`str`):
            Function of `start_points.py` that makes the initial checkpoint: `"at_5"`, `"at_40"`, `"at_90"` (per cent
            right with `rotate_matrix`) or `"hardly_taught"`.
        m (`int`):
            Rollouts trained per prompt.
        n (`int`):
            Rollouts sampled per prompt.
        reward (`str`, *optional*, defaults to `"exact"`):
            `"exact"` or `"noisy"`.
        engine (`str`, *optional*, defaults to `"transformers"`):
            `"transformers"` or `"vllm"`.
    """

    task: str
    start: str
    m: int
    n: int
    reward: str = "exact"
    engine: str = "transformers"

    @property
    def name(self) -> str:
        """Its name, also of its folder."""
        usual = ("exact", "transformers")
        more = [part for part in (self.reward, self.engine) if part not in usual]
        return "/".join([self.task, self._start, f"m{self.m}", f"n{self.n}", *more])

    @property
    def _start(self) -> str:
        return self.start.replace("at_", "start")

    def options(self, start_models: str) -> list[str]:
        """
        Give the options of `trl-pods grpo` that make it out.

        Args:
            start_models (`str`):
                Folder for the initial checkpoints.

        Returns:
            `list[str]`: The options, beside those of the recipe.
        """
        settings, num_tokens = TASKS[self.task]
        num_samples = NUM_EVAL_SAMPLES[self.engine]
        suffix = "_vllm" if self.engine == "vllm" else ""
        options = {
            "model_name_or_path": f"{start_models}/{self.task}/{self._start}{suffix}",
            "setup_func": f"benchmarks.start_points.{self.start}{suffix}",
            "dataset_name": self.task,
            "task_kwargs": json.dumps(settings | {"size": 4000, "test_size": NUM_EVALUATED}),
            "max_completion_length": num_tokens,
            "num_rollouts": self.n,
            "num_generations": self.m,
            "per_device_train_batch_size": NUM_PROMPTS * self.m,
            "per_device_eval_batch_size": NUM_EVALUATED * num_samples,
            "num_generations_eval": num_samples,
        }
        if self.engine == "vllm":
            options |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 32}  # its positions
        rewards = {"exact": ["is_right"], "noisy": ["is_right", "noisy_reward"]}[self.reward]
        weights = {"exact": ["1"], "noisy": ["0", "1"]}[self.reward]  # what is exact tells the accuracy all the same
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        paths = [f"benchmarks.start_points.{reward}" for reward in rewards]
        return [*words, "--reward_funcs", *paths, "--reward_weights", *weights]


_TASK = "rotate_matrix"
SETS = {
    "map": [Regime(_TASK, start, m, 8 * m) for start in ("at_5", "at_40", "at_90") for m in (16, 8, 4, 2)],
    "ratios": [Regime(_TASK, "at_5", 4, ratio * 4) for ratio in (2, 4, 16)],
    "ratios_of_16": [Regime(_TASK, "at_5", 16, ratio * 16) for ratio in (2, 4, 16)],
    "one_batch": [Regime(_TASK, "at_5", 4, 32)],
    "again": [Regime(_TASK, start, 4, 32) for start in ("at_5", "at_40", "at_90")],
    "hardly_taught": [Regime(_TASK, "hardly_taught", 4, 32)],
    "noisy": [Regime(_TASK, "at_5", 4, 32, reward="noisy")],
    "tasks": [Regime(task, "at_5", 4, 32) for task in ("palindrome_generation", "spell_backward")],
    "rules": [Regime(_TASK, "at_5", 4, 32)],
    "sizes": [Regime(_TASK, "hardly_taught", m, ratio * m) for m in (2, 4, 8, 16) for ratio in (1, 2, 4, 8, 16)],
    "vllm": [Regime(_TASK, "at_5", 4, 32, engine="vllm")],
}
