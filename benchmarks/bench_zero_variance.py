"""
What skipping zero-variance prompts saves, as ratios from one run.

For shares of 0, 0.5 and 0.9 of such prompts: the step of `zero_variance="skip"` over that of `"train"`, and over the
limit, which is its generation and rewards plus the share of rows left times the rest of the step of `"train"`.

    python benchmarks/bench_zero_variance.py

The trainers take turns, as in `bench_step.py`, which says how ratios are made. The model has about 5 million
parameters, so that its update is compute-bound; one thread. Generation is the same work in both, but a thread whose
update needs little memory has more pages to fetch anew for it: its own ratio is given, too.
"""

import argparse
import tempfile
import zlib
from pathlib import Path

import bench_step
import environment
from datasets import Dataset
from transformers.utils import logging as transformers_logging

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer

NUM_PROMPTS, N, M, COMPLETION_LENGTH = 10, 16, 8, 32
SHARES = (0.0, 0.5, 0.9)


def make_trainer(model_path, output_dir, turns, share, zero_variance, num_steps):
    def reward(completions, number, **kwargs):
        equal = [n % NUM_PROMPTS < share * NUM_PROMPTS for n in number]
        spread = [zlib.crc32(f"{i}{text}".encode()) / 2**32 for i, text in enumerate(completions)]
        return [0.5 if is_equal else value for is_equal, value in zip(equal, spread, strict=True)]

    numbers = list(range(20 * NUM_PROMPTS))
    trainer = bench_step.measured(PODSGRPOTrainer)(
        model=model_path,
        reward_funcs=reward,
        args=PODSGRPOConfig(
            num_rollouts=N,
            num_generations=M,
            zero_variance=zero_variance,
            shuffle_dataset=False,  # so that each generation batch has that share
            **bench_step.usual(output_dir, NUM_PROMPTS * M, COMPLETION_LENGTH, num_steps),
        ),
        train_dataset=Dataset.from_dict({"prompt": [f"w{i} w{i + 1} w{i + 2}" for i in numbers], "number": numbers}),
    )
    return bench_step.in_turns(trainer, turns)


def ratios(step, sampling):
    found = {}
    for share in SHARES:
        train, skip = step[f"train_{share:g}"], step[f"skip_{share:g}"]
        before, own = sampling[f"train_{share:g}"], sampling[f"skip_{share:g}"]
        found[f"skip_over_train_at_{share:g}"] = skip / train
        found[f"skip_over_limit_at_{share:g}"] = skip / (own + (1 - share) * (train - before))
        found[f"generation_of_skip_over_that_of_train_at_{share:g}"] = own / before
    return found


def main(num_rounds):
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    kinds = [(zero_variance, share) for share in SHARES for zero_variance in ("train", "skip")]
    names = [f"{zero_variance}_{share:g}" for zero_variance, share in kinds]
    rounds = bench_step.Rounds(names)
    turns = {name: bench_step.Turns(name, rounds) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        model_path = environment.save_model(Path(folder) / "model", hidden_size=256, num_layers=8)
        trainers = [
            make_trainer(
                model_path,
                str(Path(folder) / name),
                turns[name],
                share,
                zero_variance,
                num_rounds + bench_step.NUM_WARM_UP,
            )
            for name, (zero_variance, share) in zip(names, kinds, strict=True)
        ]
        num_parameters = sum(parameter.numel() for parameter in trainers[0].model.parameters())
        bench_step.train_all(trainers)
    for name, trainer in zip(names, trainers, strict=True):
        [rows] = [entry["pods/trained_rows"] for entry in trainer.state.log_history if "pods/trained_rows" in entry]
        left = 1 - float(name.split("_")[1]) if name.startswith("skip") else 1.0
        assert rows == round(left * NUM_PROMPTS * M), (name, rows)
    result = {"benchmark": "zero_variance", "rounds": num_rounds, "seeds": [42], "parameters": num_parameters}
    result["sizes"] = {"prompts": NUM_PROMPTS, "n": N, "m": M, "completion_length": COMPLETION_LENGTH}
    result |= {clock: bench_step.summary(turns, clock, ratios) for clock in bench_step.CLOCKS}
    environment.report("zero_variance", result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_rounds", type=int, default=20, help="rounds to measure")
    main(**vars(parser.parse_args()))
