"""
What a step costs, as ratios from one run.

1. Overhead: `PODSGRPOTrainer` with n = m against `GRPOTrainer`, which trains the very same rows.
2. Sum of phases: PODS with n > m against what plain GRPO pays for the same parts, that is generation and rewards of a
   GRPO step with groups of n, and all the rest of a GRPO step with groups of m.

    python benchmarks/bench_step.py

The trainers take turns after every optimizer step, so that what else the machine does falls on all alike. Each ratio is
given twice: as the median (with its 95 % interval, and quartiles) of the ratios within one round, and as the ratio of
the fastest tenth of the steps, which is what is left when nothing disturbs them. One thread; wall-clock and CPU seconds
of the process. All completions have the same length.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import environment
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging as transformers_logging
from trl import GRPOConfig, GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer

NUM_PROMPTS, N, M, COMPLETION_LENGTH = 4, 64, 16, 16
NUM_WARM_UP = 3  # rounds
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}


class Rounds:
    """Lets several threads run one at a time, in an order that is reversed after every round."""

    def __init__(self, names):
        self._order = list(names)
        self._waiting = list(names)
        self._changed = threading.Condition()

    def wait_for(self, name):
        with self._changed:
            self._changed.wait_for(lambda: self._waiting[0] == name)

    def pass_on(self):
        with self._changed:
            self._waiting.pop(0)
            if not self._waiting:
                self._order.reverse()
                self._waiting = list(self._order)
            self._changed.notify_all()


class Turns(TrainerCallback):
    """Measures a trainer's turns: from the start of a step to the start of the next, all that a step costs."""

    def __init__(self, name, rounds):
        self.name, self.rounds = name, rounds
        self.steps, self.sampling = [], []
        self.started = None

    def on_step_begin(self, args, state, control, **kwargs):
        if self.started is not None:
            self.steps.append(since(self.started))
            self.rounds.pass_on()
        self.rounds.wait_for(self.name)
        self.sampling.append(dict.fromkeys(CLOCKS, 0.0))
        self.started = now()

    def on_train_end(self, args, state, control, **kwargs):
        self.steps.append(since(self.started))
        self.rounds.pass_on()


def now():
    return {name: clock() for name, clock in CLOCKS.items()}


def since(start):
    return {name: clock() - start[name] for name, clock in CLOCKS.items()}


def measured(trainer_class):
    """The trainer, with the seconds of its generation and rewards added to its turn."""

    class Measured(trainer_class):
        def _generate(self, prompts):
            return self._add(super()._generate, prompts)

        def _calculate_rewards(self, *args):
            return self._add(super()._calculate_rewards, *args)

        def _add(self, function, *args):
            start = now()
            result = function(*args)
            for name, seconds in since(start).items():
                self.turns.sampling[-1][name] += seconds
            return result

    return Measured


def reward(completions, **kwargs):
    return [float(len(set(completion.split()))) for completion in completions]


def make_trainer(model_path, output_dir, turns, trainer_class, num_generations, num_steps, **arguments):
    config_class = PODSGRPOConfig if trainer_class is PODSGRPOTrainer else GRPOConfig
    trainer = measured(trainer_class)(
        model=model_path,
        reward_funcs=reward,
        args=config_class(
            num_generations=num_generations,
            **usual(output_dir, NUM_PROMPTS * num_generations, COMPLETION_LENGTH, num_steps),
            **arguments,
        ),
        train_dataset=Dataset.from_dict({"prompt": [f"w{i} w{i + 1} w{i + 2}" for i in range(200)]}),
    )
    return in_turns(trainer, turns)


def usual(output_dir, num_rows, completion_length, num_steps):
    """Arguments of a training whose steps are measured: completions of one length, and nothing else to do."""
    return {
        "output_dir": output_dir,
        "per_device_train_batch_size": num_rows,
        "max_completion_length": completion_length,
        "generation_kwargs": {"min_new_tokens": completion_length},
        "max_steps": num_steps,
        "logging_steps": num_steps,
        "save_strategy": "no",
        **environment.ON_CPU,
    }


def in_turns(trainer, turns):
    """Let a trainer wait for its turns, in which it prints nothing."""
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(turns)
    trainer.turns = turns
    return trainer


def train_all(trainers):
    """Train in a thread each, of which one runs at a time."""
    threads = [threading.Thread(target=trainer.train) for trainer in trainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ratios(step, sampling):
    """The three ratios, from the seconds of a step and of its sampling for each trainer."""
    paid_by_grpo = sampling["grpo_n"] + step["grpo_m"] - sampling["grpo_m"]
    return {
        "pods_at_n_equal_m_over_grpo": step["pods_m"] / step["grpo_m"],
        "pods_over_sum_of_grpo_phases": step["pods"] / paid_by_grpo,
        "grpo_at_n_over_pods": step["grpo_n"] / step["pods"],
    }


def summary(turns, clock, ratios=ratios):
    """Each ratio by one clock: median and quartiles over rounds, and from the fastest tenth of the steps."""
    names = list(turns)
    steps = {name: [step[clock] for step in turns[name].steps[NUM_WARM_UP:]] for name in names}
    sampling = {name: [part[clock] for part in turns[name].sampling[NUM_WARM_UP:]] for name in names}
    by_round = [
        ratios({name: steps[name][i] for name in names}, {name: sampling[name][i] for name in names})
        for i in range(len(steps[names[0]]))
    ]
    fastest = ratios(
        {name: statistics.quantiles(steps[name], n=10)[0] for name in names},
        {name: statistics.quantiles(sampling[name], n=10)[0] for name in names},
    )
    found = {}
    for ratio in fastest:
        ordered = sorted(of_round[ratio] for of_round in by_round)
        lower, median, upper = statistics.quantiles(ordered, n=4)
        # A 95 % interval of the median, from the binomial distribution of how many rounds lie below it.
        half, reach = len(ordered) / 2, 0.98 * len(ordered) ** 0.5
        interval = ordered[max(int(half - reach), 0)], ordered[min(int(half + reach), len(ordered) - 1)]
        found[ratio] = {
            "median": round(median, 4),
            "interval_of_median": [round(end, 4) for end in interval],
            "quartiles": [round(lower, 4), round(upper, 4)],
            "fastest_tenth": round(fastest[ratio], 4),
        }
    return found


def main(num_rounds):
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    kinds = {
        "grpo_n": (GRPOTrainer, N, {}),
        "grpo_m": (GRPOTrainer, M, {}),
        "pods_m": (PODSGRPOTrainer, M, {"num_rollouts": M}),
        "pods": (PODSGRPOTrainer, M, {"num_rollouts": N}),
    }
    rounds = Rounds(kinds)
    turns = {name: Turns(name, rounds) for name in kinds}
    with tempfile.TemporaryDirectory() as folder:
        model_path = environment.save_model(Path(folder) / "model", hidden_size=64, num_layers=2)
        trainers = [
            make_trainer(
                model_path,
                str(Path(folder) / name),
                turns[name],
                trainer_class,
                group,
                num_rounds + NUM_WARM_UP,
                **extra,
            )
            for name, (trainer_class, group, extra) in kinds.items()
        ]
        train_all(trainers)
    result = {"benchmark": "step", "rounds": num_rounds, "seeds": [42]}
    result["sizes"] = {"prompts": NUM_PROMPTS, "n": N, "m": M, "completion_length": COMPLETION_LENGTH}
    result |= {clock: summary(turns, clock) for clock in CLOCKS}
    environment.report("step", result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_rounds", type=int, default=300, help="rounds to measure")
    main(**vars(parser.parse_args()))
