"""The progress where people look at it: on a terminal, in a notebook, in a file."""

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
from nbclient import NotebookClient
from transformers import PrinterCallback

from trl_pods import progress
from trl_pods.progress import TrainingProgressCallback, training_progress

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
    assert process.wait(timeout=900) == 0, written.decode()[-4000:]
    return written.decode()


LINE = r"training: 100%.*4/4 \[.*, phase=\w+, kept=4/8, reward=\d\.\d{3}\]"


def test_a_terminal_shows_one_live_line(model_path, tmp_path):
    written = on_terminal([sys.executable, "-W", "ignore", str(WORKER), model_path, str(tmp_path)], columns=100)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written)
    shown = [line.rstrip() for line in re.split(r"[\r\n]+|Writing", text) if line.startswith("training")]
    assert len(shown) > 1 and re.fullmatch(LINE, shown[-1]), shown[-1]
    assert all(len(line) <= 100 for line in shown)
    assert "{'" not in text, "the trainer's own logs are printed, too"


def test_a_file_has_a_line_now_and_then(model_path, tmp_path):
    command = [sys.executable, str(WORKER), model_path, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=900)
    assert done.returncode == 0, done.stderr
    lines = [line for line in re.split(r"[\r\n]+", done.stderr) if line.startswith("training")]
    assert 1 <= len(lines) <= 5 and re.search(LINE, lines[-1]), lines
    assert "{'" not in done.stdout + done.stderr


def test_phases_are_shown(model_path, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    trainer = progress_worker.make_trainer(model_path, tmp_path, max_steps=1, beta=0.1, eval_strategy="no")
    with training_progress(trainer):
        trainer.train()
    phases = re.findall(r"phase=(\w+)", capsys.readouterr().err)
    assert list(dict.fromkeys(phase for phase in phases if phase != "update")) == [
        "generate",
        "reward",
        "select",
        "logps",
    ]
    assert phases[-1] == "update"


def test_a_run_that_is_resumed_begins_at_its_step(model_path, tmp_path, capsys):
    arguments = {"eval_strategy": "no", "save_strategy": "steps", "save_steps": 3}
    progress_worker.make_trainer(model_path, tmp_path, max_steps=3, **arguments).train()
    trainer = progress_worker.make_trainer(model_path, tmp_path, max_steps=4, **arguments)
    with training_progress(trainer):
        trainer.train(resume_from_checkpoint=True)
    assert "| 3/4 [" in capsys.readouterr().err


def test_the_trainer_has_its_own_callbacks_again_afterwards(model_path, tmp_path):
    trainer = progress_worker.make_trainer(model_path, tmp_path, max_steps=1)
    for _ in range(2):
        with training_progress(trainer):
            kinds = [type(callback) for callback in trainer.callback_handler.callbacks]
            assert PrinterCallback not in kinds
            assert kinds.count(TrainingProgressCallback) == 1
            trainer.train()
    kinds = [type(callback) for callback in trainer.callback_handler.callbacks]
    assert PrinterCallback in kinds
    assert TrainingProgressCallback not in kinds


@pytest.mark.long
def test_a_notebook_keeps_the_table_of_transformers(model_path, tmp_path):
    code = f"""
import sys
sys.path[:0] = {[str(WORKER.parent), str(WORKER.parents[1])]!r}
import progress_worker
progress_worker.main({model_path!r}, {str(tmp_path)!r})
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
    shown = [output for output in notebook.cells[0].outputs if output.output_type == "display_data"]
    assert any("[4/4" in output.data.get("text/html", "") for output in shown), shown
    printed = "".join(output.get("text", "") for output in notebook.cells[0].outputs)
    assert "{'" not in printed, "logs are printed, too"
