"""
What a sampled rollout and a trained row cost, by model size: the cost ratio c on this machine.

    python -m benchmarks.bench_prices --engine transformers
    VLLM_CPU_KVCACHE_SPACE=1 .venv-vllm/bin/python -m benchmarks.bench_prices --engine vllm

Each model trains 12 steps of 8 prompts, 16 to 4, and computes all kept rows; completions of 32 tokens. What
`trl-pods compare --cost_only` tells of a recipe, this tells of models that need none. Writes
results/prices_ENGINE.json. It takes a minute or two.
"""

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from datasets import Dataset

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.lab.costs import measure_prices

from .environment import ON_CPU, report, save_model

NUM_PROMPTS, N, M, COMPLETION_LENGTH, NUM_STEPS = 8, 16, 4, 32, 12
SIZES = {  # millions of parameters
    "0.1": {"hidden_size": 64, "num_layers": 2},
    "1": {"hidden_size": 128, "num_layers": 6},
    "5": {"hidden_size": 256, "num_layers": 8},
    "20": {"hidden_size": 512, "num_layers": 8},
}
ENGINES = {
    "transformers": {},
    "vllm": {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 64},
}
MIN_TOKENS = {"transformers": {"min_new_tokens": COMPLETION_LENGTH}, "vllm": {"ignore_eos": True}}


def keep_linear_weights() -> None:
    """On a CPU, vLLM multiplies by packed copies of the weights, which those that TRL sends do not reach."""
    import vllm.model_executor.layers.utils as layers

    def multiply_by_the_weights(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = multiply_by_the_weights


def measure(engine: str, size: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        trainer = PODSGRPOTrainer(
            model=save_model(Path(folder) / "model", **SIZES[size]),
            reward_funcs=lambda completions, **kwargs: [float(len(set(text.split()))) for text in completions],
            args=PODSGRPOConfig(
                output_dir=folder,
                num_rollouts=N,
                num_generations=M,
                rollout_batch_size=NUM_PROMPTS * N,  # all at once
                zero_variance="train",
                per_device_train_batch_size=NUM_PROMPTS * M,
                max_completion_length=COMPLETION_LENGTH,
                generation_kwargs=MIN_TOKENS[engine],
                max_steps=NUM_STEPS,
                logging_steps=1,
                save_strategy="no",
                gradient_checkpointing=False,
                **ENGINES[engine],
                **ON_CPU,
            ),
            train_dataset=Dataset.from_dict({"prompt": [f"w{i} w{i + 1} w{i + 2}" for i in range(NUM_PROMPTS)]}),
        )
        trainer.train()
        trainer.save_state()
        prices = measure_prices([Path(folder)])
        millions = sum(parameter.numel() for parameter in trainer.model.parameters()) / 1e6
    return {
        "millions_of_parameters": round(millions, 2),
        "rollout_ms": float(f"{1000 * prices.rollout:.3g}"),
        "row_ms": float(f"{1000 * prices.row:.3g}"),
        "cost_ratio": round(prices.cost_ratio, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, default="transformers")
    engine = parser.parse_args().engine
    if engine == "vllm":
        keep_linear_weights()
    report(f"prices_{engine}", {"sizes": {size: measure(engine, size) for size in SIZES}})


if __name__ == "__main__":
    main()
