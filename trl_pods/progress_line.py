"""One line of progress: live on a terminal, updated in place in a notebook, printed now and then elsewhere."""

import html
import math
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

PLAIN_EVERY = 5.0  # seconds between plain lines
NOTEBOOK_EVERY = 0.2  # seconds between updates of the line in a notebook


class ProgressLine:
    """Shows how far a piece of work with a known number of steps has come, and what it is doing."""

    def __init__(self, title: str, total: int, done: int = 0):
        self.title, self.total, self.done = title, total, done
        self.note = ""
        self._first = done
        self._started = time.monotonic()
        self._ends_at: float | None = None
        console = Console(stderr=True)
        self._display: _Terminal | _Notebook | _Plain
        if console.is_jupyter:
            self._display = _Notebook(self)
        else:
            self._display = (_Terminal if console.is_interactive else _Plain)(self, console)

    def update(self, done: int | None = None, note: str | None = None, left: float | None = None) -> None:
        """Show the state of the work."""
        stepped = done is not None and done != self.done
        if done is not None:
            self.done = done
        self.note = self.note if note is None else note
        now = time.monotonic()
        if stepped and left is None:
            left = (now - self._started) / (self.done - self._first) * (self.total - self.done)
        if left is not None:
            self._ends_at = now + left
        self._display.show(is_end=stepped and self.done in (self._first + 1, self.total))

    def close(self) -> None:
        """Leave the line as it stands."""
        self._display.close()

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end, at least 0, or `None` before the first step is done."""
        return None if self._ends_at is None else max(self._ends_at - time.monotonic(), 0.0)

    def __str__(self) -> str:
        seconds = f"{time.monotonic() - self._started:.0f} s"
        if self.seconds_left is not None:
            seconds += f", {self.seconds_left:.0f} s left"
        parts = (f"{self.title} {self.done}/{self.total}", " ".join(self.note.split()), seconds)
        return " | ".join(part for part in parts if part)


class _Terminal:
    """One line that redraws itself."""

    def __init__(self, line: ProgressLine, console: Console):
        self._line = line
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=8),  # the whole line fits into 80 columns
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            _TimeLeftColumn(line),
        )
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task(line.title, total=line.total, completed=line.done, note="")
        self._progress.start()

    def show(self, is_end: bool) -> None:
        self._progress.update(self._task, completed=self._line.done, note=self._line.note)

    def close(self) -> None:
        self._progress.stop()


class _TimeLeftColumn(ProgressColumn):
    def __init__(self, line: ProgressLine):
        super().__init__()
        self._line = line

    def render(self, task: Task) -> Text:
        left = self._line.seconds_left
        if left is None:
            return Text("")
        minutes, seconds = divmod(round(left), 60)
        hours, minutes = divmod(minutes, 60)
        return Text((f"{hours}:" if hours else "") + f"{minutes:02d}:{seconds:02d} left")


class _Notebook:
    """One output of the cell that is updated in place."""

    def __init__(self, line: ProgressLine):
        from IPython.display import display

        self._line = line
        self._shown = time.monotonic()
        self._handle = display(self._content(), raw=True, display_id=True)

    def show(self, is_end: bool) -> None:
        if is_end or time.monotonic() - self._shown >= NOTEBOOK_EVERY:
            self.close()

    def close(self) -> None:
        self._shown = time.monotonic()
        self._handle.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        bar = f"<progress value='{self._line.done}' max='{self._line.total}'></progress>"
        return {"text/plain": str(self._line), "text/html": f"{bar} {html.escape(str(self._line))}"}


class _Plain:
    """A line for the first thing that happens, for the first and the last step, and otherwise now and then."""

    def __init__(self, line: ProgressLine, console: Console):
        self._line, self._console = line, console
        self._printed = -math.inf

    def show(self, is_end: bool) -> None:
        if is_end or time.monotonic() - self._printed >= PLAIN_EVERY:
            self._printed = time.monotonic()
            self._console.print(str(self._line), highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        pass
