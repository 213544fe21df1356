"""Trainings that are ended by a signal, wherever it hits them, and resumed: what comes of it is as if nothing were."""

import json
import signal
from pathlib import Path

import commands
import pytest
import torch
from kill_worker import make_trainer
from tiny import trained_parameters, without_seconds

pytestmark = pytest.mark.long

WORKER = Path(__file__).with_name("kill_worker.py")
IN_CHECKPOINT = ["state", "weights", "optimizer", "log", "rotation"]
KILLS = [(phase, "SIGKILL") for phase in ("generate", "reward", "update", *IN_CHECKPOINT)]
TERMINATIONS = [(phase, "SIGTERM") for phase in ("generate", "reward", "update", "log")]


@pytest.fixture(scope="module")
def whole(model_path, tmp_path_factory):
    trainer = make_trainer(model_path, tmp_path_factory.mktemp("whole"))
    trainer.train()
    return trainer


@pytest.mark.parametrize(("phase", "signal_name"), KILLS + TERMINATIONS)
def test_a_training_that_is_ended_anywhere_resumes_exactly(phase, signal_name, whole, model_path, tmp_path):
    ended = commands.run_python(WORKER, model_path, tmp_path, phase, signal_name)
    assert ended.returncode == -getattr(signal, signal_name), ended.stderr[-2000:]
    assert not (tmp_path / "trained.pt").exists()
    resumed = make_trainer(model_path, tmp_path)
    resumed.train(resume_from_checkpoint=True)
    expected = trained_parameters(whole)
    assert all(torch.equal(value, expected[name]) for name, value in trained_parameters(resumed).items())
    assert without_seconds(resumed.state.log_history)[:-1] == without_seconds(whole.state.log_history)[:-1]


@pytest.mark.parametrize("phase", ["reward", "update", "state"])
def test_two_processes_of_which_one_is_killed_stop_and_resume_exactly(phase, model_path, tmp_path):
    commands.torchrun(WORKER, model_path, tmp_path / "whole")
    with pytest.raises(AssertionError, match="SIGKILL"):
        commands.torchrun(WORKER, model_path, tmp_path / "run", phase, "SIGKILL")
    commands.torchrun(WORKER, model_path, tmp_path / "run")
    expected, found = (torch.load(tmp_path / run / "trained.pt") for run in ("whole", "run"))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    histories = [json.loads((tmp_path / run / "log.json").read_text()) for run in ("whole", "run")]
    assert without_seconds(histories[0])[:-1] == without_seconds(histories[1])[:-1]
