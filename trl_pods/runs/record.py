"""
What a run was: written into its `output_dir` when training starts, and read by `trl-pods report` and `compare`.

TRL saves its arguments as a pickle, which is not safe to read from a folder that someone else has made.
"""

import dataclasses
import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from .. import __version__
from ..checks.batch_sizes import count_sampled_prompts, prompts_per_generation
from ..checks.errors import SetupError
from .atomic import atomic_write

FILE = "pods_run.json"


@dataclass(frozen=True)
class RunRecord:
    """Sizes and settings of a run."""

    num_prompts: int  # P, per generation batch, over all processes; more are sampled with `prompt_oversampling`
    num_rollouts: int  # n
    num_generations: int  # m
    down_sampling: str
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    steps_per_generation: int
    num_iterations: int
    num_processes: int
    max_completion_length: int
    learning_rate: float
    seed: int
    reward_names: list[str]
    reward_weights: list[float]
    model: str
    device: str
    versions: dict[str, str]
    zero_variance: str = "train"  # which is what versions did that have not recorded it
    prompt_oversampling: float = 1.0

    @property
    def rollouts_sampled(self) -> int:
        """Rollouts per generation batch, of all processes."""
        return count_sampled_prompts(self.num_prompts, self.prompt_oversampling) * self.num_rollouts

    @property
    def generations_per_step(self) -> Fraction:
        """Generation batches per optimizer step."""
        return Fraction(self.gradient_accumulation_steps, self.steps_per_generation * self.num_iterations)

    @classmethod
    def of(cls, trainer: Any) -> "RunRecord":
        """Describe a trainer."""
        args = trainer.args
        device = trainer.accelerator.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} {platform.machine()}"
        return cls(
            num_prompts=prompts_per_generation(args),
            **{name: getattr(args, name) for name in _FROM_ARGUMENTS},
            num_processes=args.world_size,
            reward_names=list(trainer.reward_func_names),
            reward_weights=trainer.reward_weights.tolist(),
            model=trainer.model.config._name_or_path,
            device=name,
            versions={"trl_pods": __version__} | {package: version(package) for package in _PACKAGES},
        )

    @classmethod
    def read(cls, folder: Path | str) -> "RunRecord":
        """Read the record of a run."""
        path = Path(folder) / FILE
        try:
            return cls(**json.loads(path.read_text()))
        except OSError as error:
            raise SetupError(
                f"{str(folder)!r} holds no {FILE} ({error.strerror}), which a training with trl_pods writes into its "
                "`output_dir` when it starts. Name such a folder."
            ) from error
        except (ValueError, TypeError) as error:
            raise SetupError(f"{path} is no record of a run that this version can read: {error}.") from error

    def write(self, folder: Path | str) -> None:
        """Write the record."""
        with atomic_write(Path(folder) / FILE) as draft:
            draft.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")


_PACKAGES = ("trl", "transformers", "torch")
_FROM_ARGUMENTS = (
    "num_rollouts",
    "num_generations",
    "down_sampling",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "num_iterations",
    "max_completion_length",
    "learning_rate",
    "seed",
    "zero_variance",
    "prompt_oversampling",
)


class RunRecordCallback(TrainerCallback):
    """Writes the record when training starts."""

    def __init__(self, trainer: Any):
        self._trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        if state.is_world_process_zero:
            RunRecord.of(self._trainer).write(args.output_dir)


def whole_batches(entries: list[dict[str, Any]], record: RunRecord) -> Iterator[list[dict[str, Any]]]:
    """
    Group the entries of a log into whole generation batches.

    An entry is a mean over the optimizer steps since the one before, and most steps of a generation batch sample
    nothing, so only groups that cover whole batches can be compared.
    """
    group: list[dict[str, Any]] = []
    covered = 0
    for entry in entries:
        group.append(entry)
        if (entry["step"] - covered) * record.generations_per_step % 1 == 0:
            yield group
            group, covered = [], entry["step"]
