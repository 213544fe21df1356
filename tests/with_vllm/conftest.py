"""
Real vLLM on the CPU, in an environment of its own: `make test-vllm`. Left out where vLLM is not installed.

The folder is not called `vllm`, because `tests` is on the path, where TRL would take it for the package. Engines are
real and are started with the arguments that TRL gives; tests that ask for equal ones share one.
"""

import importlib.util
import os
import warnings
from pathlib import Path

import pytest

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["*"]
else:
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GiB
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    with warnings.catch_warnings():  # those of vLLM's imports, which elsewhere would be errors
        warnings.simplefilter("ignore")
        import engine
        from vllm import LLM


def pytest_collection_modifyitems(items):
    for item in items:  # all of the session, also of other folders
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session", autouse=True)
def shared_engines():
    engine.keep_linear_weights()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trl.generation.vllm_generation.LLM", engine.shared_engine)
        yield


@pytest.fixture(scope="session")
def vllm_model_path(tmp_path_factory) -> str:
    """Folder of a tiny model that vLLM can run."""
    return engine.save_model(tmp_path_factory.mktemp("vllm_model"))


@pytest.fixture
def requests(monkeypatch) -> list[tuple[int, int]]:
    """For each call of an engine: prompts, and completions of each."""
    found = []
    generate = LLM.generate

    def recording(self, prompts, sampling_params, **kwargs):
        found.append((len(prompts), sampling_params.n))
        return generate(self, prompts, sampling_params=sampling_params, **kwargs)

    monkeypatch.setattr(LLM, "generate", recording)
    return found
