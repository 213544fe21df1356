"""What every benchmark result records, and the model and data that the benchmarks share."""

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

RESULTS = Path(__file__).parent / "results"

# Arguments of every training that is measured: on the CPU, in full precision, and telling nobody.
ON_CPU = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "bf16": False}


def describe() -> dict[str, Any]:
    """Command, commit, versions and hardware of this run."""
    git = ["git", "-C", str(Path(__file__).parent)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain", "trl_pods"], capture_output=True, text=True).stdout
    return {
        "command": " ".join(["python", *_program(), *sys.argv[1:]]),
        "commit": commit + ("+changes" if changed.strip() else ""),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "trl": trl.__version__,
        },
        "hardware": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def _program() -> list[str]:
    """What Python was told to run: a module, or a file by its path from the repository."""
    if module := getattr(sys.modules["__main__"], "__spec__", None):
        return ["-m", module.name]
    return [os.path.relpath(sys.argv[0], Path(__file__).parents[1])]


def report(name: str, result: dict[str, Any]) -> None:
    """Write a result to benchmarks/results and print it as the last line, one JSON object."""
    result = {**result, **describe()}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))


def megabytes(what: str) -> float:
    """Of this process, on Linux: `VmRSS`, what is resident now, or `VmHWM`, its peak since the last reset."""
    found = re.search(rf"{what}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


def save_model(path: Path, hidden_size: int = 128, num_layers: int = 4) -> str:
    """Write a random model with a tokenizer of 256 words to a folder."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", *(f"w{i}" for i in range(254))])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=max(hidden_size // 32, 1),  # vLLM needs heads of 32 dimensions
        num_key_value_heads=max(hidden_size // 32, 1),
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)
