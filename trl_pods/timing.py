"""Wall-clock seconds spent in each phase of a training step, and the tokens and memory of it."""

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from transformers import TrainerCallback

from .checks.trl_seam import Host

PHASES = ("generate", "reward", "select", "logps", "update")
PHASES_OF_TOKENS = {"sampled": ("generate",), "trained": ("logps", "update")}


class PhaseClock:
    """
    Adds up the seconds of named phases; the time of a phase inside another counts for the inner one alone.

    Times are the host's: work that an accelerator does in the background counts for the phase that waits for it. A
    function set as `on_phase` is told the name of every phase that begins.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.rollouts = 0.0  # sampled so far by this process
        self.rows = 0.0  # trained so far; one that is trained several times counts in part each time
        self.tokens: Counter[str] = Counter()  # of completions, by what was done to them, since the last step
        self.on_phase: Callable[[str], None] = lambda phase: None
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Count the time inside the `with` block for a phase."""
        self._switch()
        self._running.append(phase)
        self.on_phase(phase)
        try:
            yield
        finally:
            self._switch()
            self._running.pop()
            if self._running:
                self.on_phase(self._running[-1])

    def take(self) -> dict[str, float]:
        """Read the seconds of each of `PHASES` since the last reading."""
        self._switch()
        seconds = {phase: self.seconds[phase] for phase in PHASES}
        self.seconds.clear()
        return seconds

    def _switch(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


def peak_memory(device: torch.device) -> float:
    """GiB that were allocated at once on a CUDA device; on others, that were resident of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    if sys.platform == "win32":
        return float("nan")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)  # which counts bytes, others KiB


class StepClockCallback(TrainerCallback):
    """
    Times the optimizer's step and logs the seconds of each phase once per optimizer step, as `pods/time/<phase>`.

    The seconds are those since the step before, so a step that trains on an earlier generation batch shows 0 for its
    generation, and the averages that TRL logs add up to the time of a step. What is missing from the sum is padding,
    gathering and logging. `pods/cost_ratio` is what a trained row costs, in sampled rollouts, since training began.
    Tokens per second and the peak memory are those of this process.
    """

    def __init__(self, clock: PhaseClock, metrics: dict[str, list[float]], device: torch.device):
        self._clock = clock
        self._device = device
        self._metrics = metrics
        self._update = ExitStack()
        self._seconds: defaultdict[str, float] = defaultdict(float)  # since training began

    def on_pre_optimizer_step(self, *args, **kwargs) -> None:
        self._update.enter_context(self._clock.measure("update"))

    def on_optimizer_step(self, *args, **kwargs) -> None:
        self._update.close()
        taken = self._clock.take()
        for phase, seconds in taken.items():
            self._metrics[f"pods/time/{phase}"].append(seconds)
            self._seconds[phase] += seconds
        for what, phases in PHASES_OF_TOKENS.items():
            if tokens := int(self._clock.tokens.pop(what, 0)):
                rate = tokens / sum(taken[phase] for phase in phases)
                self._metrics[f"pods/{what}_tokens_per_second"].append(rate)
        self._metrics["pods/peak_memory"].append(peak_memory(self._device))
        if self._clock.rollouts and self._clock.rows:
            per_row = (self._seconds["update"] + self._seconds["logps"]) / self._clock.rows
            per_rollout = (self._seconds["generate"] + self._seconds["reward"]) / self._clock.rollouts
            self._metrics["pods/cost_ratio"].append(per_row / per_rollout)


class PhaseTimes(Host):
    """
    Times the phases of training and logs them.

    Overrides `_prepare_inputs`, `_generate`, `_calculate_rewards`, `_get_per_token_logps_and_entropies` and
    `training_step`, each to call `super()` on the clock.
    """

    clock = PhaseClock()  # of trainers that have not been built

    def __init__(self, **kwargs):
        self.clock = PhaseClock()
        super().__init__(**kwargs)
        self.add_callback(StepClockCallback(self.clock, self._metrics["train"], self.accelerator.device))

    def measure(self, phase: str) -> AbstractContextManager[None]:
        """Count the time inside the `with` block for a phase of training; evaluation is not timed."""
        return self.clock.measure(phase) if self.model.training else nullcontext()

    def training_step(self, *args, **kwargs) -> torch.Tensor:
        with self.measure("update"):
            loss = super().training_step(*args, **kwargs)
        self.clock.rows += len(self._buffered_inputs[0]["prompt_ids"]) / self.num_iterations
        return loss

    def _prepare_inputs(self, *args, **kwargs) -> dict[str, Any]:
        with self.measure("prepare"):
            inputs = super()._prepare_inputs(*args, **kwargs)
        if self.model.training:
            self.clock.tokens["trained"] += inputs["completion_mask"].sum()
        return inputs

    def _generate(self, *args, **kwargs) -> tuple:
        with self.measure("generate"):
            generated = super()._generate(*args, **kwargs)
        if self.model.training:
            self.clock.rollouts += len(generated[0])
            self.clock.tokens["sampled"] += sum(map(len, generated[1]))
        return generated

    def _calculate_rewards(self, *args, **kwargs) -> torch.Tensor:
        with self.measure("reward"):
            return super()._calculate_rewards(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        # The forward passes of the loss belong to the update; those before it have no gradient.
        with nullcontext() if torch.is_grad_enabled() else self.measure("logps"):
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)
