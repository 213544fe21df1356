"""
The memory of a generation batch without vLLM as n grows with m fixed, and what kept rows weigh between processes.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_memory

One prompt, of whose n completions of 192 tokens 16 are trained; a model whose cache of keys and values is large (a row
takes 3 MB, the weights 20 MB) samples, and one of its size scores. Each generation batch runs in a process of its own,
in chunks (the default of `rollout_batch_size`) and in one piece: by how much the resident memory rises at its peak, and
seconds. Three seeds each; ratios are of medians. It reads Linux's /proc and takes about eight minutes.
"""

import multiprocessing
import pickle
import random
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.downsampling.rows import pack, unpack

from .environment import ON_CPU, megabytes, report, save_model

M, LENGTH, SEEDS = 16, 192, (1, 2, 3)
SIZES = {"hidden_size": 256, "num_layers": 8}
# n, and the rows at once
BATCHES = [(16, None), (64, None), (256, None), (64, 64), (256, 256)]
NUM_ROWS, NUM_TOKENS = 256, 16_000  # that are exchanged


class Measured(PODSGRPOTrainer):
    """Measures a generation batch, without the update that follows."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before, started = megabytes("VmRSS"), time.perf_counter()
        output = super()._generate_and_score_completions(inputs)
        self.seconds, self.megabytes = time.perf_counter() - started, megabytes("VmHWM") - before
        return output


def measure(num_rollouts: int, rollout_batch_size: int | None, seed: int) -> tuple[float, float]:
    """Megabytes and seconds of a generation batch."""
    with tempfile.TemporaryDirectory() as folder:
        model = save_model(Path(folder) / "model", **SIZES)
        trainer = Measured(
            model=model,
            reward_funcs=LlamaForSequenceClassification(LlamaConfig.from_pretrained(model, num_labels=1)).eval(),
            reward_processing_classes=AutoTokenizer.from_pretrained(model),
            args=PODSGRPOConfig(
                output_dir=folder,
                num_rollouts=num_rollouts,
                num_generations=M,
                rollout_batch_size=rollout_batch_size,
                per_device_train_batch_size=M,
                max_completion_length=LENGTH,
                generation_kwargs={"min_new_tokens": LENGTH},
                max_steps=1,
                save_strategy="no",
                seed=seed,
                **ON_CPU,
            ),
            train_dataset=Dataset.from_dict({"prompt": ["w1 w2 w3"]}),
        )
        trainer.train()
    return trainer.megabytes, trainer.seconds


def measure_exchange() -> dict[str, dict[str, float]]:
    """Megabytes and seconds of what every process receives, as lists and as arrays."""
    rng = random.Random(0)
    rows = [
        {
            "completion_ids": [rng.randrange(150_000) for _ in range(NUM_TOKENS)],
            "logprobs": [-rng.random() for _ in range(NUM_TOKENS)],
        }
        for _ in range(NUM_ROWS)
    ]
    started = time.perf_counter()
    packed = [pack(row) for row in rows]
    packing = time.perf_counter() - started
    lists, arrays = timed_pickle(rows), timed_pickle(packed)
    started = time.perf_counter()
    for row in packed:
        unpack(row)
    return {
        "lists": lists,
        "arrays": arrays | {"pack_seconds": packing, "unpack_seconds": time.perf_counter() - started},
    }


def timed_pickle(rows: list) -> dict[str, float]:
    started = time.perf_counter()
    data = pickle.dumps(rows)
    pickled = time.perf_counter()
    pickle.loads(data)
    ended = time.perf_counter()
    return {"megabytes": len(data) / 1e6, "pickle_seconds": pickled - started, "unpickle_seconds": ended - pickled}


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    batches = []
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        for num_rollouts, at_once in BATCHES:
            memory, seconds = zip(
                *(pool.submit(measure, num_rollouts, at_once, seed).result() for seed in SEEDS), strict=True
            )
            batches.append(
                {
                    "rollouts": num_rollouts,
                    "rows_at_once": at_once or M,
                    "megabytes": [round(value, 1) for value in memory],
                    "seconds": [round(value, 1) for value in seconds],
                    "megabytes_of_n_equal_m": round(
                        statistics.median(memory) / statistics.median(batches[0]["megabytes"] if batches else memory), 2
                    ),
                }
            )
            print(batches[-1], flush=True)
        exchange = pool.submit(measure_exchange).result()
    exchange = {kind: {key: round(value, 3) for key, value in sizes.items()} for kind, sizes in exchange.items()}
    report("memory", {"trained": M, "seeds": SEEDS, "batches": batches, "exchange": exchange})


if __name__ == "__main__":
    main()
