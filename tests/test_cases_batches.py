"""
What users of GRPO trainers run into with batches, resuming and seeds (issues of TRL and others), with n > m.

Other cases of these kinds are shown beside what they are about: `grep -r test_case_ tests`.
"""

import itertools
import json
import logging
import math
import re
from collections import Counter
from pathlib import Path

import commands
import pytest
import tiny
import torch
from recording import Judge, groups_of, make_trainer, normalized, score

from trl_pods import PODSGRPOConfig
from trl_pods.cli import train as grpo
from trl_pods.downsampling.sizes import describe_batch


@pytest.fixture
def judge() -> Judge:
    return Judge()


@pytest.fixture(scope="module")
def processes(model_path, tmp_path_factory) -> list[dict]:
    """What each of three processes, which two groups straddle, saw in each of three steps."""
    folder = tmp_path_factory.mktemp("processes")
    commands.torchrun(Path(__file__).with_name("batches_worker.py"), model_path, folder, num_processes=3)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(3)]


# Sizes


@pytest.mark.parametrize(
    ("num_rollouts", "num_generations", "batch_size", "accumulation"), [(6, 4, 4, 1), (5, 3, 3, 1), (8, 4, 1, 8)]
)
def test_case_01_rollouts_need_not_be_a_multiple_of_what_is_kept(
    num_rollouts, num_generations, batch_size, accumulation, model_path, judge, tmp_path
):
    sizes = {"num_rollouts": num_rollouts, "num_generations": num_generations}
    sizes |= {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
    trainer = make_trainer(model_path, judge, tmp_path, **sizes, max_steps=1)
    trainer.train()
    num_prompts = batch_size * accumulation // num_generations
    assert judge.num_rows == [num_prompts * num_rollouts]
    assert sum(len(inputs["completion_ids"]) for inputs in trainer.trained) == num_prompts * num_generations


def test_case_01_a_batch_that_splits_a_group_is_refused_with_sizes_that_do(tmp_path):
    sizes = {"num_rollouts": 8, "num_generations": 4, "per_device_train_batch_size": 3}
    with pytest.raises(ValueError, match=r"^`num_generations` is 4 \(of `num_rollouts` 8\)") as error:
        PODSGRPOConfig(**tiny.default_arguments(tmp_path, **sizes))
    for part in ("`per_device_train_batch_size` 3 x 1 processes", "`gradient_accumulation_steps` is 1"):
        assert part in str(error.value)
    ways = re.search(r"to one of (\[.*\]), or `steps_per_generation` to a multiple of (\d+)", str(error.value))
    for way in ({"num_generations": json.loads(ways[1])[0]}, {"steps_per_generation": int(ways[2])}):
        PODSGRPOConfig(**tiny.default_arguments(tmp_path, **sizes | way))


@pytest.mark.parametrize("num_rollouts", [4, 16])
def test_case_02_a_micro_batch_has_the_user_s_rows_however_many_are_sampled(num_rollouts, model_path, judge, tmp_path):
    sizes = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
    trainer = make_trainer(model_path, judge, tmp_path, num_rollouts=num_rollouts, **sizes, max_steps=1)
    trainer.train()
    assert judge.num_rows == [2 * num_rollouts]
    assert [len(inputs["completion_ids"]) for inputs in trainer.trained] == [1] * 8


def test_case_03_batches_that_shrink_by_themselves_are_refused_when_the_config_is_made(tmp_path):
    with pytest.raises(ValueError, match=r"auto_find_batch_size.*lower `?per_device_train_batch_size"):
        PODSGRPOConfig(**tiny.default_arguments(tmp_path, auto_find_batch_size=True))


@pytest.mark.parametrize(
    ("sizes", "num_prompts", "num_steps"),
    [
        ({"num_generations": 4, "per_device_train_batch_size": 4}, 1, 6),
        ({"num_generations": 8, "per_device_train_batch_size": 8}, 1, 6),
        ({"num_generations": 4, "per_device_train_batch_size": 8}, 2, 3),
        ({"num_generations": 4, "per_device_train_batch_size": 2, "steps_per_generation": 4}, 2, 12),
        (
            {
                "num_generations": 4,
                "per_device_train_batch_size": 4,
                "steps_per_generation": 1,
                "gradient_accumulation_steps": 4,
            },
            1,
            2,
        ),
    ],
)
def test_case_05_the_log_says_what_a_step_takes_and_how_many_an_epoch_has(
    sizes, num_prompts, num_steps, model_path, judge, tmp_path, caplog
):
    kept = sizes["num_generations"]
    trainer = make_trainer(
        model_path,
        judge,
        tmp_path,
        **sizes,
        num_rollouts=2 * kept,
        train_dataset=tiny.make_dataset(6),
        num_train_epochs=1,
        max_steps=-1,
    )
    with caplog.at_level(logging.INFO, logger="trl_pods"):
        trainer.train()
    sampled = f"{num_prompts * 2 * kept} rollouts sampled ({2 * kept} per prompt)"
    trained = f"{num_prompts * kept} rows trained ({kept} per prompt)"
    assert f"Each generation batch: {num_prompts} prompts, {sampled}, {trained}" in caplog.text
    assert set(judge.num_rows) == {num_prompts * 2 * kept}
    num_batches = len(trainer.get_train_dataloader())
    assert math.ceil(num_batches / trainer.args.gradient_accumulation_steps) == trainer.state.global_step == num_steps
    assert f"An epoch: {num_steps} optimizer steps." in caplog.text


@pytest.mark.parametrize(
    ("accumulation", "steps_per_generation", "num_iterations"),
    [(1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1), (2, 4, 1), (4, 2, 2)],
)
def test_case_13_generations_are_micro_batches_over_steps_per_generation_and_iterations(
    accumulation, steps_per_generation, num_iterations, model_path, judge, tmp_path
):
    sizes = {"gradient_accumulation_steps": accumulation, "steps_per_generation": steps_per_generation}
    sizes |= {"num_iterations": num_iterations, "per_device_train_batch_size": 4, "max_steps": 2}
    trainer = make_trainer(model_path, judge, tmp_path, **sizes)
    trainer.train()
    assert len(judge.num_rows) == 2 * accumulation / (steps_per_generation * num_iterations)
    assert set(judge.num_rows) == {steps_per_generation * 8}
    assert [len(inputs["completion_ids"]) for inputs in trainer.trained] == [4] * 2 * accumulation
    per_generation = steps_per_generation * num_iterations / accumulation
    assert f" {per_generation:g} optimizer steps." in describe_batch(trainer.args)


# Rows


@pytest.mark.long
def test_case_06_groups_that_straddle_processes_are_judged_whole(processes):
    for step in range(3):
        sampled = sum((process["sampled"][step] for process in processes), [])
        trained = sum((process["trained"][step] for process in processes), [])
        for number in {number for number, _, _ in sampled}:
            reward_of = {tuple(ids): reward for own, ids, reward in sampled if own == number}
            kept = [(reward_of[tuple(ids)], advantage) for own, ids, advantage in trained if own == number]
            assert (len(reward_of), len(kept)) == (6, 3)
            rewards, advantages = torch.tensor(kept).unbind(dim=1)
            subsets = torch.tensor(list(itertools.combinations(reward_of.values(), 3)))
            torch.testing.assert_close(rewards.var(), subsets.var(dim=1).max())
            torch.testing.assert_close(advantages, normalized(rewards[None])[0], rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_case_07_processes_sample_different_completions_of_the_same_prompt(processes):
    for step in range(3):
        first, second, third = ({number for number, _, _ in process["sampled"][step]} for process in processes)
        assert first < second > third, "no group straddles processes, so nothing was tested"
        completions = [tuple(ids) for process in processes for _, ids, _ in process["sampled"][step]]
        assert len(set(completions)) == 12


@pytest.mark.long
def test_case_08_processes_train_equally_many_rows_wherever_the_kept_ones_were_sampled(processes):
    assert [[len(rows) for rows in process["trained"]] for process in processes] == [[2] * 3] * 3
    held = []
    for step in range(3):
        trained = [ids for process in processes for _, ids, _ in process["trained"][step]]
        held.append([[ids in trained for _, ids, _ in process["sampled"][step]].count(True) for process in processes])
    assert [sum(counts) for counts in held] == [6] * 3
    assert held != [[2] * 3] * 3, "each process sampled as many of the kept rows, so nothing was tested"


def numbered_rollouts(prompts, trainer) -> dict:
    """Rollouts whose every value says which of them it belongs to."""
    numbers = range(len(prompts))
    return {
        "prompt_ids": trainer.processing_class(list(prompts))["input_ids"],
        "completion_ids": [[3 + i] * (2 + i % 4) for i in numbers],
        "logprobs": [[-float(i)] * (2 + i % 4) for i in numbers],
        "env_mask": [[1] + [i % 2] * (1 + i % 4) for i in numbers],
    }


def test_case_10_every_value_of_a_row_stays_with_it(model_path, tmp_path):
    def reward(completion_ids, **kwargs):
        return [score(*ids) for ids in completion_ids]

    sizes = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "num_iterations": 2}
    trainer = make_trainer(model_path, reward, tmp_path, rollout_func=numbered_rollouts, beta=0.1, **sizes)
    trainer.train()
    for inputs in trainer.trained:
        assert {"old_per_token_logps", "ref_per_token_logps"} <= inputs.keys()
        assert {len(value) for value in inputs.values() if torch.is_tensor(value) and value.dim() > 0} == {4}
        for i, row in enumerate(trainer.rows(inputs)):
            number, length = row["completion"][0] - 3, len(row["completion"])
            assert length == 2 + number % 4
            assert inputs["tool_mask"][i, :length].tolist() == [1] + [number % 2] * (length - 1)
            assert inputs["sampling_per_token_logps"][i, :length].tolist() == [-float(number)] * length
    assert trainer.logged("kl")[0] == pytest.approx(0, abs=1e-6)  # as the reference's values are of the same rows


def test_case_10_a_list_without_one_value_for_each_row_is_refused(model_path, judge, tmp_path):
    def rollouts(prompts, trainer):
        return numbered_rollouts(prompts, trainer) | {"label": ["one too few"] * (len(prompts) - 1)}

    trainer = make_trainer(model_path, judge, tmp_path, rollout_func=rollouts)
    with pytest.raises(ValueError, match=r"'label'.* has 15 values for 16 rollouts"):
        trainer.train()


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_case_11_the_update_does_not_depend_on_how_its_rows_are_split(loss_type, model_path, judge, tmp_path):
    norms = []
    for batch_size in (8, 4, 1):
        sizes = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": 8 // batch_size}
        trainer = make_trainer(model_path, judge, tmp_path, **sizes, loss_type=loss_type, max_steps=1)
        trainer.train()
        norms += trainer.logged("grad_norm")
    assert judge.calls[0] == judge.calls[1] == judge.calls[2]
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-4) and norms[0] > 0


@pytest.mark.parametrize("num_rollouts", [4, 8])
def test_case_14_a_reward_function_sees_all_rollouts_of_a_prompt(num_rollouts, model_path, tmp_path):
    seen = []

    def reward(prompts, completions, **kwargs):
        seen.append((len(completions), *Counter(prompts).values()))
        return tiny.distinct_characters(completions)

    make_trainer(model_path, reward, tmp_path, num_rollouts=num_rollouts).train()
    assert seen == [(2 * num_rollouts, num_rollouts, num_rollouts)] * 2


@pytest.mark.long
def test_case_14_a_reward_function_sees_the_rollouts_of_its_own_process(processes):
    assert [process["num_rewarded"] for process in processes] == [[4] * 3] * 3  # 2 prompts x 6 over 3 processes


def test_case_15_advantages_are_over_the_kept_rows_of_the_same_prompt(model_path, tmp_path):
    def by_place(target, **kwargs):
        return [10.0 * number + i % 8 for i, number in enumerate(target)]

    trainer = make_trainer(model_path, by_place, tmp_path)
    trainer.train()
    # Of places 0 to 7, these have the largest variance. Their mean is 3.5.
    expected = [(place - 3.5) / (math.sqrt(37 / 3) + 1e-4) for place in (0, 1, 6, 7)]
    for inputs in trainer.trained:
        for group in groups_of(trainer.rows(inputs)):
            assert sorted(row["advantage"] for row in group) == pytest.approx(expected, rel=1e-4)


# Resuming and seeds


@pytest.mark.parametrize("wanted", [True, "out/checkpoint-1"])
def test_case_17_a_recipe_resumes_from_the_last_checkpoint_or_from_a_named_one(wanted, in_tmp, model_path):
    def train(**overrides):
        path = commands.recipe(in_tmp, model_path, save_strategy="steps", save_steps=1, **overrides)
        return grpo.run(["--config", path]).state.log_history

    first, resumed = train(), train(max_steps=3, resume_from_checkpoint=wanted)
    assert [entry["step"] for entry in resumed if "reward" in entry] == [1, 2, 3]
    # What was measured in the first run is what tells its entries from those of another.
    assert [entry in first for entry in resumed[:3]] == [True, wanted is True, False]


def test_case_18_counts_go_on_after_resuming(model_path, judge, tmp_path):
    arguments = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole = make_trainer(model_path, Judge(), tmp_path, **arguments)
    whole.train()
    resumed = make_trainer(model_path, judge, tmp_path, **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert len(judge.calls) == 2, "training began anew"
    names = [name for name in whole.state.log_history[0] if name.startswith("pods/kept")]
    for name in ("num_tokens", "epoch", *names):
        assert resumed.logged(name) == whole.logged(name), name
    counted = resumed.logged("num_tokens")
    assert counted == sorted(set(counted)) and counted[-1] == resumed.state.num_input_tokens_seen


def test_case_19_a_seed_gives_the_same_training_again(model_path, judge, tmp_path):
    def train(seed):
        trainer = make_trainer(model_path, judge, tmp_path, down_sampling="random", seed=seed)
        trainer.train()
        return torch.cat([parameter.flatten() for parameter in tiny.trained_parameters(trainer).values()])

    first = train(1)
    assert torch.equal(train(1), first)
    assert not torch.equal(train(2), first)


def test_case_19_a_rule_with_randomness_does_not_change_what_is_sampled(model_path, tmp_path):
    sampled, kept = [], []
    for rule in ("max_variance", "random"):
        judge = Judge()
        trainer = make_trainer(model_path, judge, tmp_path, down_sampling=rule, learning_rate=0.0, max_steps=3)
        trainer.train()
        sampled.append(judge.calls)
        kept.append([{row["completion"] for row in trainer.rows(inputs)} for inputs in trainer.trained])
    assert sampled[0] == sampled[1]
    assert kept[0] != kept[1]
