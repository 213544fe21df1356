"""What users of GRPO trainers run into beside rewards: groups, logs, adapters, generation and memory, with n > m."""

import gc
import logging
from pathlib import Path
from statistics import fmean

import commands
import pandas as pd
import pytest
import tiny
import torch
from pages import Page, assert_drawn
from peft import LoraConfig, PeftModel, get_peft_model
from recording import Judge, assert_aligned, expected_score, make_trainer, score, train_with_tools
from transformers import EarlyStoppingCallback, LlamaForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from versions import ends_turns_at_any_stop_token

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer, register_strategy
from trl_pods.checks.errors import SetupError
from trl_pods.cli import train as grpo
from trl_pods.lab.report.page import render_report
from trl_pods.lab.report.text import number
from trl_pods.strategies import registry


def by_place(prompts, trainer) -> dict:
    """A `rollout_func` whose completions, all equally long, depend on the place in the group alone."""
    tokenizer = trainer.processing_class
    completions = [[3 + i % trainer.num_generations] * 3 + [tokenizer.eos_token_id] for i in range(len(prompts))]
    return {"prompt_ids": tokenizer(list(prompts))["input_ids"], "completion_ids": completions, "logprobs": None}


def constant(completions, **kwargs) -> list[float]:
    return [1.0] * len(completions)


def table_of_step(output_dir, step: int) -> pd.DataFrame:
    return pd.read_parquet(Path(output_dir) / "completions" / f"completions_{step:05d}.parquet")


# Groups without variance


@pytest.mark.parametrize(("level", "difference"), [(1.0, 0.0), (1.0, 1e-7), (1e6, 0.0625)])
def test_case_36_rewards_that_differ_by_rounding_are_no_variance(level, difference, model_path, tmp_path):
    def reward(completions, **kwargs):
        return [level + difference * (i % 8 == 1) for i in range(len(completions))]

    trainer = make_trainer(model_path, reward, tmp_path, log_completions=True, num_completions_to_print=0)
    trainer.train()
    assert trainer.logged("frac_reward_zero_std") == trainer.logged("pods/kept_frac_zero_std") == [1.0, 1.0]
    for step in (1, 2):
        assert table_of_step(tmp_path, step)["kept"].tolist() == ([True] * 4 + [False] * 4) * 2


def test_case_37_normalize_then_sum_does_not_hide_groups_without_variance(model_path, tmp_path):
    def half_constant(completions, target, **kwargs):
        return [1.0 if value % 2 else float(i) for i, value in enumerate(target)]

    arguments = {"multi_objective_aggregation": "normalize_then_sum", "shuffle_dataset": False}
    trainer = make_trainer(model_path, half_constant, tmp_path, **arguments)
    trainer.train()
    assert trainer.logged("frac_reward_zero_std") == trainer.logged("pods/kept_frac_zero_std") == [0.5, 0.5]


def test_case_38_groups_without_variance_feel_the_kl_term_as_in_grpo(model_path, tmp_path):
    def gradients(trainer_class, config_class, **arguments):
        args = config_class(**tiny.default_arguments(tmp_path, **arguments))
        trainer = trainer_class(model_path, constant, args, tiny.make_dataset(), rollout_func=by_place)
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.mul_(1.05)  # away from the reference
        trainer.train()
        return [log["grad_norm"] for log in trainer.state.log_history if "grad_norm" in log]

    expected = gradients(GRPOTrainer, GRPOConfig, beta=0.1)
    assert min(expected) > 0
    assert gradients(PODSGRPOTrainer, PODSGRPOConfig, num_rollouts=8, beta=0.1) == pytest.approx(expected, rel=1e-4)
    assert gradients(PODSGRPOTrainer, PODSGRPOConfig, num_rollouts=8) == [0.0, 0.0]


def test_case_39_groups_without_variance_count_in_the_denominator_of_the_loss(model_path, tmp_path):
    def only_of_even_prompts(completions, target, **kwargs):
        return [1.0 if value % 2 else float(i) for i, value in enumerate(target)]

    def gradient(num_prompts):
        arguments = {"train_dataset": tiny.make_dataset(num_prompts), "per_device_train_batch_size": 4 * num_prompts}
        arguments |= {"rollout_func": by_place, "loss_type": "dapo", "shuffle_dataset": False, "max_steps": 1}
        trainer = make_trainer(model_path, only_of_even_prompts, tmp_path, **arguments)
        trainer.train()
        return trainer.logged("grad_norm")[0]

    assert gradient(2) == pytest.approx(gradient(1) / 2, rel=1e-4)


def test_case_40_the_logged_reward_is_the_accuracy_though_half_of_the_kept_are_right(model_path, tmp_path):
    def right(completions, **kwargs):
        return [float(i % 8 < 2) for i in range(len(completions))]

    trainer = make_trainer(model_path, right, tmp_path)
    trainer.train()
    assert trainer.logged("reward") == trainer.logged("rewards/right/mean") == [0.25, 0.25]
    assert trainer.logged("pods/kept_reward") == [0.5, 0.5]


# Logs and tables


def test_case_42_the_table_of_accumulated_micro_batches_has_each_rollout_in_line(model_path, tmp_path):
    def judge(prompts, completions, **kwargs):
        return [score(prompt, completion) for prompt, completion in zip(prompts, completions)]

    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "log_completions": True}
    make_trainer(model_path, judge, tmp_path, **arguments).train()
    for step in (1, 2):
        table = table_of_step(tmp_path, step)
        assert table.groupby("prompt")["kept"].agg(["size", "sum"]).to_numpy().tolist() == [[8, 4], [8, 4]]
        expected = [score(prompt, completion) for prompt, completion in zip(table["prompt"], table["completion"])]
        assert table["judge"].tolist() == pytest.approx(expected)


ONE_PROCESS_LOGS = """
import os, sys
import tiny
from recording import make_trainer
from trl_pods.cli.launch import end_process_group

def reward(completions, log_extra, log_metric, **kwargs):
    rewards = tiny.distinct_characters(completions)
    if os.environ["RANK"] == "0":
        log_extra("extra", rewards)
        log_metric("metric", 7.0)
    return rewards

arguments = {"per_device_train_batch_size": 4, "log_completions": True, "ddp_backend": "gloo", "ddp_timeout": 30}
trainer = make_trainer(sys.argv[1], reward, sys.argv[2], **arguments)
trainer.train()
assert trainer.logged("metric") == [7.0, 7.0]
del trainer
end_process_group()
"""


@pytest.mark.long
def test_case_45_what_one_process_alone_logs_blocks_no_other(model_path, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ONE_PROCESS_LOGS)
    commands.torchrun(script, model_path, tmp_path)
    for step in (1, 2):
        table = table_of_step(tmp_path, step)
        assert table["extra"].tolist()[:8] == table["reward"].tolist()[:8]
        assert table["extra"].notna().tolist() == [True] * 8 + [False] * 8
        assert table["kept"].sum() == 8


def test_case_47_completion_metrics_describe_all_rollouts(model_path, tmp_path):
    lengths = []

    def shorter(completion_ids, **kwargs):
        lengths.append([float(len(ids)) for ids in completion_ids])
        return [-length for length in lengths[-1]]

    trainer = make_trainer(model_path, shorter, tmp_path, down_sampling="max_reward", max_completion_length=48)
    trainer.train()
    for name, value_of in {"mean": fmean, "min": min, "max": max}.items():
        assert trainer.logged(f"completions/{name}_length") == pytest.approx([value_of(own) for own in lengths])
    assert max(trainer.logged("pods/kept_token_fraction")) < 0.5, "all are equally long, so nothing was told apart"


def train_without_reward_at_every_second_step(model_path, reward, output_dir, **arguments):
    arguments = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "max_steps": 6} | arguments
    trainer = make_trainer(model_path, reward, output_dir, **arguments)
    if "eval_dataset" in arguments:
        trainer.add_callback(EarlyStoppingCallback())
    trainer.train()
    return trainer


def test_case_48_early_stopping_copes_with_a_step_without_reward(model_path, tmp_path):
    arguments = {"eval_dataset": tiny.make_dataset(2), "num_generations_eval": 1, "per_device_eval_batch_size": 2}
    arguments |= {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "eval_reward"}
    trainer = train_without_reward_at_every_second_step(model_path, constant, tmp_path, **arguments)
    assert trainer.state.global_step == 2
    assert len(trainer.logged("reward")) == 1


def test_case_48_a_report_copes_with_steps_without_reward(model_path, tmp_path):
    trainer = train_without_reward_at_every_second_step(model_path, Judge(), tmp_path)
    trainer.save_state()
    steps = trainer.state.log_history[:-1]
    assert ["reward" in step for step in steps] == [True, False] * 3
    page = Page(render_report(tmp_path))
    assert_drawn(page.picture("Reward"), "ink", trainer.logged("reward"))
    rows = {name: seconds for name, seconds, *_ in page.table("phase")}
    for phase in ("generate", "update"):
        assert rows[f"■ {phase}"] == number(fmean(step[f"pods/time/{phase}"] for step in steps))


def test_case_50_batches_of_a_shorter_last_window_count_as_all_others(model_path, tmp_path):
    judge = Judge()
    arguments = {"gradient_accumulation_steps": 2, "steps_per_generation": 1, "logging_steps": 2, "max_steps": -1}
    dataset = tiny.make_dataset(6)  # three generation batches, so windows of two and of one
    trainer = make_trainer(model_path, judge, tmp_path, train_dataset=dataset, num_train_epochs=1, **arguments)
    trainer.train()
    kept = [fmean(map(expected_score, trainer.rows(inputs))) for inputs in trainer.trained]
    assert trainer.state.global_step == 2 and len(kept) == 3
    assert trainer.logged("reward") == pytest.approx([fmean(fmean(call.values()) for call in judge.calls)], abs=1e-6)
    assert trainer.logged("pods/kept_reward") == pytest.approx([fmean(kept)], abs=1e-6)


def test_case_51_every_logged_step_has_a_table_of_its_own_on_disk(model_path, tmp_path):
    make_trainer(model_path, Judge(), tmp_path, log_completions=True, max_steps=4).train()
    tables = sorted((tmp_path / "completions").iterdir())
    assert [table.name for table in tables] == [f"completions_{step:05d}.parquet" for step in (1, 2, 3, 4)]
    assert [pd.read_parquet(table)["step"].tolist() for table in tables] == [[step] * 16 for step in (1, 2, 3, 4)]


def double(value: int) -> str:
    """
    Double a number.

    Args:
        value: A number.

    Returns:
        Twice the number.
    """
    return f"[{2 * value}]"


@ends_turns_at_any_stop_token
def test_case_52_truncated_completions_with_tool_results_are_masked_in_their_rows(tool_model_path, tmp_path):
    arguments = {"tool": "double", "tools": [double], "mask_truncated_completions": True, "num_rollouts": 4}
    trainer = train_with_tools(tool_model_path, Judge(), tmp_path, **arguments)
    masks = [inputs["completion_mask"] for inputs in trainer.trained]
    assert {True, False} == {bool(row.any()) for mask in masks for row in mask}
    assert any((mask > inputs["tool_mask"]).any() for mask, inputs in zip(masks, trainer.trained))
    for mask, inputs in zip(masks, trainer.trained):
        assert inputs["num_items_in_batch"] == (mask * inputs["tool_mask"]).sum()
    assert_aligned(trainer)


# Adapters


def lora() -> LoraConfig:
    return LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", lora_dropout=0.0)


def test_case_55_a_peft_model_with_a_peft_config_is_refused(model_path, tmp_path):
    model = get_peft_model(LlamaForCausalLM.from_pretrained(model_path), lora())
    with pytest.raises(ValueError, match=r"a `PeftModel` instance together with a `peft_config`.*merge and unload"):
        make_trainer(model, tiny.distinct_characters, tmp_path, peft_config=lora())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"use_peft": True, "lora_target_modules": ["lm_head"]}, r"adapter to `lm_head` is not supported.*Remove"),
        ({"sync_ref_model": True}, "`sync_ref_model=True` while `beta=0.0`"),
        ({"use_peft": True, "sync_ref_model": True, "beta": 0.1}, "`sync_ref_model=True` while using a PEFT model"),
    ],
)
def test_case_55_a_recipe_of_an_adapter_that_cannot_work_is_refused(in_tmp, model_path, overrides, message):
    with pytest.raises(SetupError, match=message):
        grpo.run(["--config", commands.recipe(in_tmp, model_path, **overrides)])


def test_case_55_all_linear_in_a_recipe_means_all_linear_layers(in_tmp, model_path):
    arguments = {"use_peft": True, "lora_target_modules": "all-linear", "max_steps": 1}
    trainer = grpo.run(["--config", commands.recipe(in_tmp, model_path, **arguments)])
    assert len(trainer.model.peft_config["default"].target_modules) == 2 * 7
    assert trainer.state.global_step == 1


@pytest.mark.parametrize("peft_config", [None, lora()], ids=["full", "lora"])
def test_case_57_what_is_saved_is_the_trained_model_and_nothing_else(peft_config, model_path, tmp_path):
    def load(path):
        return LlamaForCausalLM.from_pretrained(path).eval()

    trainer = make_trainer(model_path, Judge(), tmp_path, peft_config=peft_config, learning_rate=1e-2)
    trainer.train()
    trainer.save_model()
    trainer.model.eval()
    saved = load(tmp_path) if peft_config is None else PeftModel.from_pretrained(load(model_path), tmp_path)
    ids = torch.arange(3, 23).unsqueeze(0)
    with torch.no_grad():
        before, after, trained = (model(ids).logits for model in (load(model_path), saved, trainer.model))
    torch.testing.assert_close(after, trained)
    assert (trained - before).abs().max() > 1e-3
    assert saved.state_dict().keys() == trainer.model.state_dict().keys()
    assert not any("pods" in name or "kept" in name for name in trainer.model.state_dict())


# Generation


def test_case_64_the_key_that_trl_removed_leaves_out_long_prompts(in_tmp, model_path, caplog):
    caplog.set_level(logging.INFO, logger="trl_pods")
    trainer = grpo.run(["--config", commands.recipe(in_tmp, model_path, max_prompt_length=24)])
    assert trainer.train_dataset["target"][:] == list(range(10))
    assert "Left out 6 of 16 prompts longer than `max_prompt_length` (24 tokens)." in caplog.text


@ends_turns_at_any_stop_token
def test_case_67_rules_see_completions_end_at_any_stop_token_of_the_model(model_path, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_STRATEGIES", dict(registry._built_in()))
    seen, sampled = [], []

    @register_strategy("recording")
    def recording(rewards, num_kept, completion_lengths, truncated):
        seen.append((completion_lengths.flatten().tolist(), truncated.flatten().tolist()))
        return torch.arange(num_kept).expand(len(rewards), -1)

    def reward(completion_ids, **kwargs):
        sampled.extend(completion_ids)
        return [score(*ids) for ids in completion_ids]

    model, letters = LlamaForCausalLM.from_pretrained(model_path), range(3, 29)
    model.generation_config.eos_token_id = [1, *letters]
    make_trainer(model, reward, tmp_path, down_sampling="recording", max_completion_length=3, max_steps=1).train()
    cut = [ids[-1] not in (0, 1, *letters) for ids in sampled]
    assert seen == [([len(ids) for ids in sampled], cut)]
    assert any(cut) and any(ids[-1] in letters for ids in sampled)


def test_case_72_a_field_of_a_rollout_is_not_left_in_the_row_of_the_data(model_path, tmp_path):
    seen = []

    def rollout(prompts, trainer):
        return by_place(prompts, trainer) | {"place": list(range(len(prompts)))}

    def reward(completions, place, **kwargs):
        seen.append(place)
        return [float(i) for i in place]

    trainer = make_trainer(model_path, reward, tmp_path, rollout_func=rollout)
    trainer.model.train()
    first, second = tiny.make_dataset(2).to_list()
    trainer._generate_and_score_completions([first] * 8 + [second] * 8)  # the same row object for each rollout
    assert seen == [list(range(16))]
    assert [first, second] == tiny.make_dataset(2).to_list()


# Memory and cost


@pytest.fixture
def only_new_objects():
    """Hide from the garbage collector what there is before the test."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_case_90_tensors_of_all_rollouts_are_released_and_none_pile_up(only_new_objects, model_path, tmp_path):
    found = []

    class Look(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            gc.collect()
            found.append([tuple(thing.shape) for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)])

    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, num_rollouts=11, beta=0.1, max_steps=4))
    PODSGRPOTrainer(model_path, tiny.distinct_characters, args, tiny.make_dataset(), callbacks=[Look()]).train()
    assert not [shape for shapes in found for shape in shapes if shape[:1] == (22,) or shape[:2] == (2, 11)]
    assert len(found[0]) > 50 and len(found[1]) == len(found[2]) == len(found[3])


def test_case_91_several_gpus_in_one_process_are_refused(model_path, tmp_path):
    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, num_rollouts=8))
    args._n_gpu = 2  # as where two are visible and no launcher started a process for each
    with pytest.raises(ValueError, match=r"does not support `nn.DataParallel`.*Launch .* `accelerate launch`"):
        PODSGRPOTrainer(model_path, tiny.distinct_characters, args, tiny.make_dataset())


@pytest.mark.parametrize("reward", [0.0, None])
def test_case_92_nothing_is_sampled_again_whatever_the_rewards(reward, model_path, tmp_path):
    calls = []

    def useless(prompts, completions, **kwargs):
        calls.append(set(prompts))
        return [reward] * len(completions)

    trainer = make_trainer(model_path, useless, tmp_path, max_steps=8)
    trainer.train()
    assert [len(prompts) for prompts in calls] == [2] * 8
    assert len(set().union(*calls)) == 16
    assert all((inputs["advantages"] == 0).all() for inputs in trainer.trained)
