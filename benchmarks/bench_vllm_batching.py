"""
What it brings that vLLM's `max_num_seqs` is sized for the n rollouts of a prompt and not for the m that are trained.

`GRPOTrainer` sizes a colocated engine for the rows of a generation batch. `PODSGRPOTrainer` lets it see the P n rows
that are sampled, so that all are decoded together; sized for the P m rows that are trained, the engine would decode
them in n / m batches. Each trainer builds its engine, and both engines generate the same P n rows, in turns.

    .venv-vllm/bin/python benchmarks/bench_vllm_batching.py

The ratio is the seconds of the m-sized engine over those of the n-sized one, above 1 where n-sized is faster: its
median with the 95 % interval, and quartiles, over rounds, in wall-clock and in CPU seconds of the process. All
completions have the same length. On a CPU the cost of a decoding step grows with its rows almost from the first, while
a GPU decodes many rows at nearly the price of one: what is found here says little of a GPU.
"""

import argparse
import importlib.metadata
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GiB
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import environment
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer

NUM_PROMPTS, N, M, COMPLETION_LENGTH = 4, 64, 16, 16
MODELS = {"small": {"hidden_size": 128, "num_layers": 4}, "wide": {"hidden_size": 512, "num_layers": 2}}
NUM_WARM_UP = 2  # rounds
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}


def make_trainer(model_path, output_dir, trainer_class, **arguments):
    config_class = PODSGRPOConfig if trainer_class is PODSGRPOTrainer else GRPOConfig
    return trainer_class(
        model=model_path,
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        args=config_class(
            output_dir=output_dir,
            num_generations=M,
            per_device_train_batch_size=NUM_PROMPTS * M,
            max_completion_length=COMPLETION_LENGTH,
            generation_kwargs={"ignore_eos": True},
            use_vllm=True,
            vllm_mode="colocate",
            vllm_max_model_length=128,
            report_to="none",
            use_cpu=True,
            bf16=False,
            **arguments,
        ),
        train_dataset=Dataset.from_dict({"prompt": [f"w{i} w{i + 1} w{i + 2}" for i in range(NUM_PROMPTS)]}),
    )


def seconds_to_generate(trainer):
    prompts = [trainer.processing_class(row["prompt"])["input_ids"] for row in trainer.train_dataset]
    start = {name: clock() for name, clock in CLOCKS.items()}
    _, completion_ids, *_ = trainer.vllm_generation.generate(
        [ids for ids in prompts for _ in range(N)], images=None, num_generations=N
    )
    seconds = {name: clock() - start[name] for name, clock in CLOCKS.items()}
    assert [len(ids) for ids in completion_ids] == [COMPLETION_LENGTH] * NUM_PROMPTS * N
    return seconds


def spread(values):
    """Median, the 95 % interval of it, and quartiles."""
    ordered = sorted(values)
    lower, median, upper = statistics.quantiles(ordered, n=4)
    # From the binomial distribution of how many rounds lie below the median.
    half, reach = len(ordered) / 2, 0.98 * len(ordered) ** 0.5
    interval = ordered[max(int(half - reach), 0)], ordered[min(int(half + reach), len(ordered) - 1)]
    return {
        "median": round(median, 4),
        "interval_of_median": [round(end, 4) for end in interval],
        "quartiles": [round(lower, 4), round(upper, 4)],
    }


def measure(model_path, folder, num_rounds):
    trainers = {
        "n": make_trainer(model_path, folder, PODSGRPOTrainer, num_rollouts=N),
        "m": make_trainer(model_path, folder, GRPOTrainer),
    }
    sizes = {
        name: trainer.vllm_generation.llm.llm_engine.vllm_config.scheduler_config.max_num_seqs
        for name, trainer in trainers.items()
    }
    assert sizes == {"n": NUM_PROMPTS * N, "m": NUM_PROMPTS * M}
    seconds = {name: [] for name in trainers}
    for i in range(NUM_WARM_UP + num_rounds):
        for name in trainers if i % 2 else reversed(trainers):
            seconds[name].append(seconds_to_generate(trainers[name]))
    rounds = list(zip(seconds["n"][NUM_WARM_UP:], seconds["m"][NUM_WARM_UP:], strict=True))
    tokens = NUM_PROMPTS * N * COMPLETION_LENGTH
    found = {"max_num_seqs": sizes}
    for clock in CLOCKS:
        found[clock] = {
            "m_sized_over_n_sized": spread([m[clock] / n[clock] for n, m in rounds]),
            "fastest_over_fastest": round(min(m[clock] for _, m in rounds) / min(n[clock] for n, _ in rounds), 4),
            "tokens_per_second": {
                "n": spread([tokens / n[clock] for n, _ in rounds]),
                "m": spread([tokens / m[clock] for _, m in rounds]),
            },
        }
    return found


def main(num_rounds):
    result = {"benchmark": "vllm_batching", "rounds": num_rounds, "seeds": [42]}
    result["sizes"] = {"prompts": NUM_PROMPTS, "n": N, "m": M, "completion_length": COMPLETION_LENGTH}
    result["vllm"] = {"vllm-cpu": importlib.metadata.version("vllm-cpu"), "dtype": "bfloat16"}
    with tempfile.TemporaryDirectory() as folder:
        for name, sizes in MODELS.items():
            model_path = environment.save_model(Path(folder) / name, **sizes)
            result[name] = {"model": sizes, **measure(model_path, folder, num_rounds)}
    environment.report("vllm_batching", result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_rounds", type=int, default=30, help="rounds to measure")
    main(**vars(parser.parse_args()))
