"""
What selecting costs, as ratios from one run.

1. `max_variance` against `torch.sort` of the same tensor, at (P, n, m) = (64, 1024, 256).
2. The scan of the PODS paper written plainly, which builds the subset for each k and calls `.var()`, against
   `max_variance`, at (1, 128, 32).
3. How time and memory grow with n, for every rule.
4. The share of a real training step that selecting takes, at P = 8, n = 64, m = 16.
5. What every rule keeps of 0/1 rewards, by the trainer's own metrics, at n = 64, m = 16.

    python benchmarks/bench_strategies.py

Blocks of calls to be compared take turns; a ratio is the median of the ratios of neighbouring blocks. One thread.
"""

import argparse
import os
import statistics
import tempfile
import time
import tracemalloc
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import environment
import torch
from datasets import Dataset
from torch.profiler import ProfilerActivity, profile
from transformers import PrinterCallback
from transformers.utils import logging as transformers_logging

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer, get_strategy, list_strategies
from trl_pods.downsampling.metrics import selection_metrics
from trl_pods.downsampling.selection import requested, seeded_generator
from trl_pods.strategies import max_variance


def paper_scan(rewards, num_kept):
    """The plain form of the paper's algorithm for one prompt: sort, try every k, keep the best."""
    [rewards] = rewards
    order = rewards.argsort(stable=True)
    best, kept = -1.0, None
    for k in range(num_kept + 1):
        subset = torch.cat([order[: num_kept - k], order[len(order) - k :]])
        spread = rewards[subset].var()
        if spread > best:
            best, kept = spread, subset
    return kept.unsqueeze(0)


def seconds(function, num_calls=1):
    start = time.perf_counter()
    for _ in range(num_calls):
        function()
    return time.perf_counter() - start


def ratio(one, other, num_pairs, num_calls):
    """Time of `one` / time of `other`: median and quartiles over neighbouring blocks of calls."""
    one(), other()
    ratios = [seconds(one, num_calls) / seconds(other, num_calls) for _ in range(num_pairs)]
    lower, median, upper = statistics.quantiles(ratios, n=4)
    return {"median": round(median, 3), "quartiles": [round(lower, 3), round(upper, 3)]}


def prepared(rule, num_prompts, num_rollouts, num_kept, device="cpu"):
    """A call of the rule on random rewards, without arguments."""
    draw = seeded_generator(0)
    rewards = torch.randn(num_prompts, num_rollouts, generator=draw).to(device)
    context = {
        "completion_lengths": torch.randint(1, 500, rewards.shape, generator=draw).to(device),
        "generator": draw,
    }
    strategy = get_strategy(rule)
    arguments = requested(strategy, context)
    return lambda: strategy(rewards, num_kept, **arguments)


def peak_bytes(function):
    """Most that was allocated at once by NumPy, which tracemalloc follows, and all that torch allocated."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        function()
    by_torch = sum(max(event.self_cpu_memory_usage, 0) for event in recorded.key_averages())
    tracemalloc.start()
    function()
    by_numpy = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return by_torch + by_numpy


def growth(sizes):
    """For each rule and n: milliseconds for one prompt, and peak bytes per rollout."""
    table = {}
    for rule in list_strategies():
        rows = []
        for n in sizes:
            call = prepared(rule, 1, n, n // 4)
            call()
            fastest = min(seconds(call) for _ in range(20))
            rows.append({"n": n, "ms": round(1000 * fastest, 3), "bytes_per_rollout": round(peak_bytes(call) / n)})
        table[rule] = rows
        print(rule, *(f"n={row['n']}: {row['ms']} ms, {row['bytes_per_rollout']} B/rollout;" for row in rows))
    return table


def share_of_a_step(num_steps):
    """Seconds selecting / seconds of a step, in a real training of a two-layer model."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = PODSGRPOTrainer(
            model=environment.save_model(Path(folder) / "model", hidden_size=64, num_layers=2),
            reward_funcs=lambda completions, **kwargs: [float(len(set(text.split()))) for text in completions],
            args=PODSGRPOConfig(
                output_dir=folder,
                num_rollouts=64,
                num_generations=16,
                per_device_train_batch_size=128,
                max_completion_length=32,
                max_steps=num_steps,
                logging_steps=1,
                save_strategy="no",
                **environment.ON_CPU,
            ),
            train_dataset=Dataset.from_dict({"prompt": [f"w{i} w{i + 1}" for i in range(200)]}),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    logs = [log for log in trainer.state.log_history if "step_time" in log][1:]
    shares = [log["pods/time/select"] / log["step_time"] for log in logs]
    lower, median, upper = statistics.quantiles(shares, n=4)
    return {
        "median": round(median, 5),
        "quartiles": [round(lower, 5), round(upper, 5)],
        "select_ms": round(1000 * statistics.median(log["pods/time/select"] for log in logs), 2),
        "step_ms": round(1000 * statistics.median(log["step_time"] for log in logs), 1),
    }


def what_rules_keep(num_prompts=2000, num_rollouts=64, num_kept=16):
    """The trainer's metrics of every rule on simulated rewards of three pass rates, where right answers are shorter."""
    table = {}
    for rule in list_strategies():
        table[rule] = {}
        for pass_rate in (0.05, 0.4, 0.9):
            draw = seeded_generator(2)
            rewards = (torch.rand(num_prompts, num_rollouts, generator=draw) < pass_rate).float()
            lengths = torch.randint(50, 300, rewards.shape, generator=draw) + 100 * (1 - rewards.long())
            strategy = get_strategy(rule)
            context = {"completion_lengths": lengths, "generator": draw}
            metrics = selection_metrics(rewards, strategy(rewards, num_kept, **requested(strategy, context)), lengths)
            names = ("pods/variance_gain", "pods/kept_token_fraction")
            table[rule][f"pass rate {pass_rate}"] = {name: round(metrics[name], 3) for name in names}
    return table


def main(num_pairs, num_steps):
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    large, small = torch.randn(64, 1024, generator=seeded_generator(1)), torch.randn(1, 128)
    assert torch.equal(paper_scan(small, 32).sort().values, max_variance(small, 32).sort().values)
    environment.report(
        "strategies",
        {
            "benchmark": "strategies",
            "pairs": num_pairs,
            "seeds": [0, 1],
            "max_variance_over_sort_64_1024_256": ratio(
                lambda: max_variance(large, 256), lambda: torch.sort(large, dim=1), num_pairs, 3
            ),
            "paper_scan_over_max_variance_1_128_32": ratio(
                lambda: paper_scan(small, 32), lambda: max_variance(small, 32), num_pairs, 20
            ),
            "growth_of_one_prompt": growth([64, 256, 1024, 4096, 16384, 65536]),
            "what_rules_keep_64_16": what_rules_keep(),
            "selecting_over_step_8_64_16": share_of_a_step(num_steps),
        },
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_pairs", type=int, default=100, help="pairs of blocks of calls for each ratio")
    parser.add_argument("--num_steps", type=int, default=20, help="steps of the real training")
    main(**vars(parser.parse_args()))
