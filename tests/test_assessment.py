"""What a training says of itself: on the console of a script, and in three sentences at its end."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from recording import Judge, make_trainer

from trl_pods.lab.report.page import render_report
from trl_pods.runs.assessment import assess
from trl_pods.runs.record import RunRecord

TESTS = Path(__file__).parent

SCRIPT = """
import logging, os, signal, sys
import tiny
from trl_pods import PODSGRPOConfig, PODSGRPOTrainer

signal.signal(signal.SIGINT, signal.default_int_handler)
model_path, output_dir, stop_at, resume, set_up = sys.argv[1:]
if set_up == "basic":
    logging.basicConfig(level="INFO", format="user: %(message)s")
calls = 0

def reward(completions, **kwargs):
    global calls
    calls += 1
    if calls == int(stop_at):
        os.kill(os.getpid(), signal.SIGINT)
    return tiny.distinct_characters(completions)

arguments = tiny.default_arguments(output_dir, max_steps=3, save_strategy="steps", save_steps=1)
trainer = PODSGRPOTrainer(model_path, reward, PODSGRPOConfig(**arguments), tiny.make_dataset())
trainer.train(resume_from_checkpoint=resume == "resume" or None)
"""


def run_script(model_path, folder, *, stop_at=0, resume=False, set_up="none") -> tuple[int, str]:
    command = [sys.executable, "-c", SCRIPT, model_path, str(folder), str(stop_at), "resume" if resume else "", set_up]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    return done.returncode, done.stderr


@pytest.mark.long
def test_a_script_says_what_is_sampled_where_it_stopped_and_from_where_it_resumes(model_path, tmp_path):
    code, said = run_script(model_path, tmp_path, stop_at=3)
    assert code != 0 and "KeyboardInterrupt" in said
    line = "Each generation batch: 2 prompts, 32 rollouts sampled (16 per prompt), 8 rows trained (4 per prompt)"
    assert said.count(line) == 1 and said.count("`num_rollouts` is 4 times `num_generations`, the default.") == 1
    assert f"\nInterrupted at step 2 of 3. To resume from {tmp_path}/checkpoint-2, call `train(" in said
    code, said = run_script(model_path, tmp_path, resume=True)
    assert code == 0 and f"Resuming after step 2, from {tmp_path}/checkpoint-2." in said
    assert said.count("% of the prompts had no variance") == said.count("Rollouts are ") == 1
    code, said = run_script(model_path, tmp_path, resume=True)
    assert code == 0 and said.count("Nothing was left to train") == 1


@pytest.mark.long
def test_a_logging_that_was_set_up_shows_each_line_once(model_path, tmp_path):
    _, said = run_script(model_path, tmp_path, set_up="basic")
    assert said.count("Each generation batch") == said.count("user: Each generation batch") == 1


def some_equal(prompts, completions, **kwargs) -> list[float]:
    """Rewards that are equal for every other prompt."""
    rewards = tiny.distinct_characters(completions)
    return [reward * (int(prompt.split()[-1]) % 2) for prompt, reward in zip(prompts, rewards, strict=True)]


@pytest.mark.parametrize("sizes", [{}, {"logging_steps": 2}, {"num_iterations": 2, "logging_steps": 4}])
def test_the_sentences_are_what_the_log_and_the_clock_say(sizes, model_path, tmp_path, caplog):
    caplog.set_level("INFO", "trl_pods")
    arguments = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "max_steps": 8} | sizes
    trainer = make_trainer(model_path, some_equal, tmp_path, **arguments)
    trainer.train()
    trainer.save_state()
    sentences = caplog.messages[-3:]
    assert sentences == assess(trainer.state.log_history, RunRecord.of(trainer))
    assert all(sentence in render_report(tmp_path).replace("&#39;", "'") for sentence in sentences)
    share = sum(trainer.logged("frac_reward_zero_std")) / len(trainer.logged("frac_reward_zero_std"))
    assert 0.2 < share < 0.8 and sentences[0].startswith(f"{100 * share:.0f} % of the prompts")
    rows, of_all = 16 * 8 // sizes.get("num_iterations", 1), trainer.clock.rows
    assert sentences[1].startswith(f"{rows - of_all:,.0f} of {rows} rows were skipped") and of_all < rows
    span = sizes.get("logging_steps", 1)
    seconds = span * (sum(trainer.logged("pods/time/update")) + sum(trainer.logged("pods/time/logps")))
    assert f"saved at most {seconds / of_all * (rows - of_all):,.3g} s" in sentences[1]
    assert f"{trainer.logged('pods/cost_ratio')[-1]:.3g} sampled rollouts" in sentences[2]


@pytest.mark.parametrize(
    ("cost_ratio", "sizes", "says"),
    [
        (7.0, {"zero_variance": "train"}, "cheap here: .*A larger `num_rollouts` or a smaller"),
        (4.0, {}, "neither dear nor cheap"),
        (2.0, {}, "dear here: .*What may pay: a smaller `num_rollouts`, a larger `num_generations`.$"),
        (2.0, {"prompt_oversampling": 2.0, "num_rollouts": 4}, "dear here: .*What may pay: a smaller `prompt_over"),
        (2.0, {"num_rollouts": 4}, "dear here: .*Sampling more than are trained is unlikely"),
    ],
)
def test_the_direction_follows_the_cost_ratio(cost_ratio, sizes, says, model_path, tmp_path):
    record = RunRecord.of(make_trainer(model_path, Judge(), tmp_path, **sizes))
    entry = {"pods/trained_rows": 8.0, "frac_reward_zero_std": 0.25, "pods/cost_ratio": cost_ratio}
    share, savings, direction = assess([entry | {"step": 1}, entry | {"step": 2}], record)
    assert share.startswith("25 % of the prompts")
    assert savings == "No row was skipped."
    assert re.search(says, direction)
    assert assess([entry | {"step": 1}], record) == [], "a single generation batch shows little"
