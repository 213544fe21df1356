"""Fixtures shared by all tests: the tiny model on disk."""

import os
import sys

# One thread: the models are too small to share out, and test processes would wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import logging

import pytest
import tiny
import tiny_tools


@pytest.fixture(autouse=True)
def log_level():
    """The command line shows what is of level INFO; other tests of the process must not see it."""
    logger = logging.getLogger("trl_pods")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory) -> str:
    """Folder of the tiny model and its tokenizer."""
    return tiny.save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tool_model_path(tmp_path_factory) -> str:
    """Folder of the tiny model that calls tools."""
    return tiny_tools.save_model(tmp_path_factory.mktemp("tool_model"))


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    """A current folder of its own, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
