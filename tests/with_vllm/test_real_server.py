"""
Server mode against a real `vllm serve` on the CPU.

All of it is real but that weights are not sent, for which TRL needs NCCL and so a GPU: the learning rate is 0, so that
server and trainer agree all the same.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from engine import EVALUATION, assert_structured, make_trainer
from recording import Judge, assert_aligned
from serving import keep_weights_here
from trl.generation.vllm_client import VLLMClient

START_SECONDS = 300


def wait_until_up(url: str, process: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5)
        except (urllib.error.URLError, TimeoutError):
            time.sleep(1)
        else:
            return
    pytest.fail(f"`vllm serve` did not come up: {log.read_text()[-4000:]}")


@pytest.fixture(scope="module")
def server_url(vllm_model_path, tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log.txt"
    launcher = Path(__file__).with_name("serve_on_cpu.py")
    command = [sys.executable, str(launcher), "serve", vllm_model_path, "--host", "127.0.0.1", "--port", str(port)]
    options = ["--max-model-len", "128", "--logprobs-mode", "processed_logprobs", "--enforce-eager"]
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, *options], env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"}, stdout=file, stderr=file
        )
        try:
            wait_until_up(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=60)


def server_arguments(server_url: str) -> dict:
    return {"vllm_mode": "server", "vllm_server_base_url": server_url, "learning_rate": 0.0}


@pytest.mark.feature("vLLM, served: requests")
def test_a_real_server_answers_each_prompt_with_n_completions(server_url, vllm_model_path, tmp_path, monkeypatch):
    asked = []
    generate = VLLMClient.generate

    def recording(self, prompts, **arguments):
        asked.append((len(prompts), arguments["n"]))
        return generate(self, prompts, **arguments)

    monkeypatch.setattr(VLLMClient, "generate", recording)
    keep_weights_here(monkeypatch)
    judge = Judge()
    trainer = make_trainer(vllm_model_path, judge, tmp_path, **server_arguments(server_url), **EVALUATION)
    trainer.train()
    assert asked == [(2, 16), (4, 2)] * 2
    assert judge.num_rows == [32, 8] * 2
    assert_aligned(trainer)
    for name in ("sampling/sampling_logp_difference/mean", "eval_sampling/sampling_logp_difference/mean"):
        differences = trainer.logged(name)
        print(f"{name}: {differences}")
        assert len(differences) == 2
        assert max(differences) < 0.02


@pytest.mark.feature("vLLM structured outputs")
def test_a_real_server_structures_its_outputs(server_url, vllm_model_path, tmp_path, monkeypatch):
    keep_weights_here(monkeypatch)
    assert_structured(vllm_model_path, tmp_path, **server_arguments(server_url))
