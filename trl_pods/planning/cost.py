"""
What a generation batch costs: seconds of sampling grow with n, seconds of the update with m.

    seconds(n, m) = a + b n  +  c + d m  +  select

a + b n is the time of the phases generate and reward for the P prompts of a generation batch, c + d m that of logps,
update and what is in no phase (padding, gathering). P is fixed, and so are the rows of a micro-batch as far as they
divide: with a larger m there are more micro-batches, so the update is paid per row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from ..errors import SetupError
from ..phases import PHASES
from ..runs.batches import batches_per_step, whole_batches
from ..runs.record import RunRecord

_WARM_UP = 2  # generation batches: compiling, filling caches


@dataclass(frozen=True)
class Timing:
    """
    Measured seconds per generation batch of P prompts.

    Args:
        num_rollouts (`int`):
            n.
        num_generations (`int`):
            m.
        sampling (`float`):
            Seconds of generating and scoring P n rollouts.
        selecting (`float`):
            Seconds of the rule.
        updating (`float`):
            Seconds of log-probs, updates and what is in no phase, for P m rows.
    """

    num_rollouts: int
    num_generations: int
    sampling: float
    selecting: float
    updating: float

    @property
    def seconds(self) -> float:
        """Seconds per generation batch."""
        return self.sampling + self.selecting + self.updating


@dataclass(frozen=True)
class CostModel:
    """
    Seconds of a generation batch of P prompts as a function of n and m.

    Args:
        per_batch_sampled (`float`):
            a, seconds of sampling whatever n is.
        per_rollout (`float`):
            b, seconds for each of the n rollouts per prompt, of all P prompts.
        per_batch_trained (`float`):
            c, seconds of the update whatever m is.
        per_kept (`float`):
            d, seconds for each of the m kept rollouts per prompt, of all P prompts.
        selecting (`float`):
            Seconds of the rule, taken as the same for all pairs.
    """

    per_batch_sampled: float
    per_rollout: float
    per_batch_trained: float
    per_kept: float
    selecting: float = 0.0

    def seconds(self, num_rollouts: int, num_generations: int) -> float:
        """
        Predict the seconds of a generation batch.

        Args:
            num_rollouts (`int`):
                n.
            num_generations (`int`):
                m.

        Returns:
            `float`: Seconds.

        Example:

        ```python
        >>> from trl_pods.planning.cost import CostModel

        >>> CostModel(1.0, 0.5, 2.0, 0.25).seconds(16, 8)
        13.0

        ```
        """
        sampling = self.per_batch_sampled + self.per_rollout * num_rollouts
        return sampling + self.per_batch_trained + self.per_kept * num_generations + self.selecting

    def largest_error(self, timings: Sequence[Timing]) -> float:
        """
        Compare with measured times.

        Args:
            timings (`Sequence[Timing]`):
                What was measured.

        Returns:
            `float`: Largest |predicted / measured - 1|.
        """
        return max(abs(self.seconds(t.num_rollouts, t.num_generations) / t.seconds - 1) for t in timings)


def fit_cost(timings: Sequence[Timing]) -> CostModel:
    """
    Fit the cost model to measured times.

    Args:
        timings (`Sequence[Timing]`):
            One for each run, all of the same P. Where all have the same n (or m), the part of the sampling (or the
            update) that does not grow cannot be known, and is taken as 0.

    Returns:
        [`CostModel`]: The model.
    """
    sampled = nonnegative_line([t.num_rollouts for t in timings], [t.sampling for t in timings])
    trained = nonnegative_line([t.num_generations for t in timings], [t.updating for t in timings])
    return CostModel(*sampled, *trained, selecting=float(np.mean([t.selecting for t in timings])))


def nonnegative_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """
    Fit y = a + b x with a, b >= 0 by least squares of the relative errors.

    Relative ones, because seconds scatter in proportion to themselves. A quadratic in two variables has its minimum
    over the quadrant inside it or on one of its two edges, so all three are tried.

    Args:
        x (`Sequence[float]`):
            Positive numbers.
        y (`Sequence[float]`):
            As many seconds, 0 or more.

    Returns:
        `tuple[float, float]`: a and b; a is 0 where all x are the same.

    Example:

    ```python
    >>> from trl_pods.planning.cost import nonnegative_line

    >>> [round(value, 6) for value in nonnegative_line([1, 2, 4], [3, 5, 9])]
    [1.0, 2.0]

    ```
    """
    seconds = np.asarray(y, dtype=float)
    if not seconds.any():
        return 0.0, 0.0
    scale = np.maximum(seconds, 0.01 * seconds.max())[:, None]
    columns = np.stack([np.ones(len(seconds)), np.asarray(x, dtype=float)], axis=1) / scale
    known = [[0, 1], [1], [0]] if len(set(x)) > 1 else [[1]]
    fits = [_least_squares(columns, seconds / scale[:, 0], used) for used in known]
    return min((fit for fit in fits if min(fit[1]) >= 0), key=lambda fit: fit[0])[1]


def _least_squares(columns: np.ndarray, target: np.ndarray, used: list[int]) -> tuple[float, tuple[float, float]]:
    line = np.zeros(2)
    line[used] = np.linalg.lstsq(columns[:, used], target, rcond=None)[0]
    return float(np.square(columns @ line - target).sum()), (float(line[0]), float(line[1]))


def read_timing(log: list[dict[str, Any]], record: RunRecord) -> Timing:
    """
    Read the times of a run from its log, whatever its accumulation of gradients and its steps per generation.

    Args:
        log (`list[dict]`):
            The log, with `pods/time/*` in seconds per optimizer step.
        record ([`RunRecord`]):
            Sizes of the run.

    Returns:
        [`Timing`]: Medians over the generation batches, without the first two where there are more.

    Raises:
        SetupError: The log holds no such times, or not those of a whole generation batch.
    """
    entries = [entry for entry in log if all(f"pods/time/{phase}" in entry for phase in PHASES)]
    if not entries:
        raise SetupError("its log holds no `pods/time/*`. Train with `trl-pods grpo` or `PODSGRPOTrainer`.")
    batches = list(_generation_batches(entries, record))
    if not batches:
        raise SetupError("its log does not cover a whole generation batch. Train for more steps.")
    batches = batches[min(_WARM_UP, len(batches) // 2) :]
    sampling, selecting, updating = (median(seconds) for seconds in zip(*batches, strict=True))
    return Timing(record.num_rollouts, record.num_generations, sampling, selecting, updating)


def _generation_batches(entries: list[dict[str, Any]], record: RunRecord) -> Iterator[np.ndarray]:
    """Seconds of sampling, selecting and updating per generation batch."""
    last = 0
    for group in whole_batches(entries, record):
        steps = np.diff([last, *(entry["step"] for entry in group)])
        total = sum(n * _seconds(entry) for n, entry in zip(steps, group, strict=True))
        yield total / float(steps.sum() * batches_per_step(record))
        last = group[-1]["step"]


def _seconds(entry: dict[str, Any]) -> np.ndarray:
    generate, reward, select, logps, update = (entry[f"pods/time/{phase}"] for phase in PHASES)
    # `step_time` is TRL's, which leaves the optimizer's own step out; so what is in no phase can come out below 0.
    rest = max(0.0, entry.get("step_time", 0.0) - (generate + reward + select + logps + update))
    return np.array([generate + reward, select, logps + update + rest])
