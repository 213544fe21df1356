"""Wall-clock seconds spent in each phase of a training step."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from transformers import TrainerCallback

PHASES = ("generate", "reward", "select", "logps", "update")


class PhaseClock:
    """
    Adds up the seconds of named phases; the time of a phase inside another counts for the inner one alone.

    Times are the host's: work that an accelerator does in the background counts for the phase that waits for it. A
    function set as `on_phase` is told the name of every phase that begins.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
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
        """Read the clock and set it back to 0."""
        self._switch()
        seconds = {phase: self.seconds[phase] for phase in PHASES}
        self.seconds.clear()
        return seconds

    def _switch(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


class StepClockCallback(TrainerCallback):
    """
    Times the optimizer's step and logs the seconds of each phase once per optimizer step, as `pods/time/<phase>`.

    The seconds are those since the step before, so a step that trains on an earlier generation batch shows 0 for its
    generation, and the averages that TRL logs add up to the time of a step. What is missing from the sum is padding,
    gathering and logging.
    """

    def __init__(self, clock: PhaseClock, metrics: dict[str, list[float]]):
        self._clock = clock
        self._metrics = metrics
        self._update = ExitStack()

    def on_pre_optimizer_step(self, *args, **kwargs) -> None:
        self._update.enter_context(self._clock.measure("update"))

    def on_optimizer_step(self, *args, **kwargs) -> None:
        self._update.close()
        for phase, seconds in self._clock.take().items():
            self._metrics[f"pods/time/{phase}"].append(seconds)
