"""The progress line where people look at it: on a terminal, in a notebook, in a file."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import nbformat
import progress_worker
import pytest
import tiny
from nbclient import NotebookClient
from transformers import PrinterCallback

from trl_pods import progress_line
from trl_pods.progress import _TrainingProgressCallback, training_progress
from trl_pods.progress_line import ProgressLine
from trl_pods.wall_clock import WallClockCallback

WORKER = Path(__file__).with_name("progress_worker.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(WORKER.parent), str(WORKER.parents[1])])}
for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
    ENVIRONMENT.pop(name, None)


def on_terminal(command: list[str], columns: int) -> str:
    """What a command writes to a terminal of so many columns, control sequences included."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**ENVIRONMENT, "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=writer, stdout=writer, stderr=writer, env=environment)
    os.close(writer)
    written = b""
    try:
        while chunk := os.read(reader, 65536):
            written += chunk
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(reader)
    assert process.wait(timeout=60) == 0, written.decode()[-4000:]
    return written.decode()


def test_a_terminal_shows_one_live_line(model_path, tmp_path):
    written = on_terminal([sys.executable, str(WORKER), model_path, str(tmp_path)], columns=80)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written)
    shown = [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.startswith("training ")]
    assert re.fullmatch(r"training ━+ 4/4 \S.*\| reward \d\.\d{3} \| kept 4/8 00:00 left", shown[-1]), shown[-1]
    assert all(len(line) <= 80 for line in shown)
    assert "{'" not in text, "the trainer's own logs are printed, too"
    assert text.rstrip().endswith(shown[-1]), "something was printed after the line"


def test_plain_lines_say_what_begins_and_how_it_ended(model_path, tmp_path):
    command = [sys.executable, str(WORKER), model_path, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=170)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("training ")]
    assert re.fullmatch(r"training 0/4 \| generating 2x8 \| kept 4/8 \| \d+ s", lines[0])
    assert re.fullmatch(r"training 1/4 \| updating \| reward \d\.\d+ \| kept 4/8 \| \d+ s, \d+ s left", lines[1])
    assert lines[-1].startswith("training 4/4 | updating | reward")


def shown_phases(trainer, monkeypatch, capsys, **train_arguments) -> list[str]:
    """The phases in the order in which they are shown, each once for as long as it lasts."""
    monkeypatch.setattr(progress_line, "PLAIN_EVERY", 0.0)
    with training_progress(trainer):
        trainer.train(**train_arguments)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("training ")]
    phases = [line.split(" | ")[1] for line in lines]
    return [phase for i, phase in enumerate(phases) if i == 0 or phase != phases[i - 1]]


def test_phases_are_shown_in_their_order(model_path, tmp_path, monkeypatch, capsys):
    trainer = progress_worker.make_trainer(model_path, tmp_path, max_steps=2, beta=0.1)
    step = ["generating 2x8", "scoring 2x8", "selecting", "log-probs", "updating"]
    assert shown_phases(trainer, monkeypatch, capsys) == [
        *step,
        *step,
        "evaluating",
        "evaluating 1/2",
        "evaluating 2/2",
        "updating",
    ]


def test_an_evaluation_at_the_start_is_a_phase(model_path, tmp_path, monkeypatch, capsys):
    trainer = progress_worker.make_trainer(model_path, tmp_path, max_steps=1, eval_on_start=True)
    phases = shown_phases(trainer, monkeypatch, capsys)
    assert phases[:4] == ["evaluating", "evaluating 1/2", "evaluating 2/2", "kept 4/8"]
    assert phases[4] == "generating 2x8"


def test_the_trainer_has_its_own_callbacks_again_afterwards(model_path, tmp_path):
    trainer = progress_worker.make_trainer(model_path, tmp_path, max_steps=1)
    for _ in range(2):
        with training_progress(trainer):
            kinds = [type(callback) for callback in trainer.callback_handler.callbacks]
            assert PrinterCallback not in kinds
            assert kinds.count(_TrainingProgressCallback) == 1
            trainer.train()
    kinds = [type(callback) for callback in trainer.callback_handler.callbacks]
    assert PrinterCallback in kinds
    assert _TrainingProgressCallback not in kinds


class Recorded(_TrainingProgressCallback):
    """The callback with a clock that the test moves, and with the seconds left that it tells at each step."""

    def __init__(self, trainer):
        super().__init__(trainer)
        self.now, self.lefts = 0.0, []
        self._clock = lambda: self.now

    def _show(self, label, **progress):
        if "done" in progress:
            self.lefts.append(progress["left"])
        super()._show(label, **progress)


def seconds_left(model_path, output_dir, *, wall_clock=None, resume=None, **overrides) -> list[float]:
    """The seconds left as told at each step, where a step takes 10 s and an evaluation 100 s."""
    trainer = progress_worker.make_trainer(model_path, output_dir, **overrides)

    def reward(completions, **kwargs):
        callback.now += 10.0 if trainer.model.training else 50.0  # an evaluation has two batches
        return tiny.distinct_characters(completions)

    trainer.reward_funcs[0] = reward
    if wall_clock is not None:
        wall_clock._clock = lambda: callback.now
        wall_clock.attach(trainer)
    callback = Recorded(trainer)
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=resume)
    callback.close()
    return callback.lefts


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"eval_strategy": "no"}, [40, 30, 20, 10, 0]),
        # Evaluations after steps 2, 4 and 5, told from the first one on; that at the start does not count for a step.
        ({}, [40, 30, 220, 210, 100]),
        ({"eval_on_start": True}, [340, 330, 220, 210, 100]),
        ({"wall_clock": WallClockCallback(max_seconds=30), "eval_strategy": "no"}, [20, 10, 0]),
        ({"wall_clock": WallClockCallback(eval_seconds=20), "eval_strategy": "no"}, [40, 30, 120, 110, 100]),
    ],
)
def test_the_time_left_counts_training_and_evaluation_apart(overrides, expected, model_path, tmp_path):
    assert seconds_left(model_path, tmp_path, max_steps=5, **overrides) == expected


def test_the_time_left_is_right_from_the_first_step_after_a_resume(model_path, tmp_path):
    progress_worker.make_trainer(
        model_path, tmp_path, max_steps=3, eval_strategy="no", save_strategy="steps", save_steps=3
    ).train()
    assert seconds_left(model_path, tmp_path, max_steps=6, eval_strategy="no", resume=True) == [20, 10, 0]


@pytest.mark.long
def test_a_notebook_shows_one_output_that_is_updated(model_path, tmp_path):
    code = f"""
import sys
sys.path[:0] = {[str(WORKER.parent), str(WORKER.parents[1])]!r}
import progress_worker
progress_worker.main({model_path!r}, {str(tmp_path)!r})
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [output for output in notebook.cells[0].outputs if output.output_type == "display_data"]
    assert len(shown) == 1, shown
    line = r"training 4/4 \| .* \| reward \d\.\d{3} \| kept 4/8 \| \d+ s, 0 s left"
    assert re.fullmatch(line, shown[0].data["text/plain"])
    assert "<progress value='4' max='4'></progress>" in shown[0].data["text/html"]
    printed = "".join(output.get("text", "") for output in notebook.cells[0].outputs)
    assert "{'" not in printed and "training 1/4" not in printed, "logs or plain lines are printed, too"


def test_a_line_of_other_work_tells_the_time_left_by_its_steps(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: now[0])
    line = ProgressLine("teaching", 10)
    for step in range(1, 4):
        now[0] += 2.0
        line.update(step, f"loss {step}")
    line.close()
    assert capsys.readouterr().err.splitlines() == [
        "teaching 1/10 | loss 1 | 2 s, 18 s left",
    ]
