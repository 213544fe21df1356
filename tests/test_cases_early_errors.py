"""Mistakes that are found when the trainer is built, or when training or a dry run starts, and not later."""

import inspect
import json
import re
from importlib.util import find_spec

import commands
import pytest
import tiny
from commands import recipe
from datasets import Dataset, DatasetDict
from peft import LoraConfig, PeftModel, get_peft_model
from recording import make_trainer
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, LlamaForSequenceClassification
from trl import GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.checks.errors import SetupError, exit_on_user_error
from trl_pods.checks.options import CHOICES
from trl_pods.cli import train as grpo
from trl_pods.data import adapt, check_prompts, load_named


@pytest.fixture(params=[4, 8], ids=["all", "down-sampled"])
def build(request, model_path, tmp_path):
    """Builds a trainer of the tiny model, with as many rollouts as are trained or with more."""

    def build(reward_funcs=tiny.distinct_characters, **arguments):
        return make_trainer(model_path, reward_funcs, tmp_path, **{"num_rollouts": request.param} | arguments)

    return build


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"generation_kwargs": {"num_return_sequences": 2}}, "'num_return_sequences' to 2.*Set that instead"),
        ({"generation_kwargs": {"tempreature": 0.5}}, "'tempreature' to 0.5.*Did you mean 'temperature'"),
        ({"generation_kwargs": {"n": 2}}, "sets 'n' to 2, but generation has no such option"),
        ({"generation_kwargs": {"max_new_tokens": 9}}, r"'max_new_tokens' to 9.*`max_completion_length` \(6\)"),
        ({"generation_kwargs": {"max_length": 9}}, r"'max_length' to 9.*`max_completion_length` \(6\)"),
        ({"generation_kwargs": {"temperature": 0}}, "'temperature' to 0, but it must be a number above 0"),
        ({"generation_kwargs": {"temperature": None}}, "'temperature' to None, but it must be a number above 0"),
        ({"temperature": -1}, "`temperature` is -1, but it must be a number above 0"),
    ],
)
def test_case_109_what_generation_does_not_take_is_refused(arguments, message, build):
    with pytest.raises(ValueError, match=message):
        build(**arguments)


def test_case_109_a_rollout_func_may_have_options_of_its_own(build):
    def rollout_func(prompts, trainer):
        raise NotImplementedError

    trainer = build(rollout_func=rollout_func, generation_kwargs={"beams_of_my_engine": 2})
    assert trainer.args.generation_kwargs == {"beams_of_my_engine": 2}


@pytest.mark.parametrize("name", CHOICES)
def test_case_110_a_value_that_an_option_does_not_have_is_refused(name, model_path, tmp_path):
    right = CHOICES[name][1][0]
    wrong = right[:-2] + "xx"
    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, **{name: wrong}))
    with pytest.raises(ValueError, match=f"`{name}` is '{wrong}', but it must be one of .*{right}"):
        PODSGRPOTrainer(model_path, tiny.distinct_characters, args, tiny.make_dataset())


def test_case_110_a_trainer_with_a_loss_of_its_own_knows_its_values(model_path, tmp_path):
    class Own(GRPOTrainer):
        def _compute_loss(self, model, inputs): ...

    class OwnPODS(PODSGRPOTrainer, Own):
        pass

    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, loss_type="own"))
    assert OwnPODS(model_path, tiny.distinct_characters, args, tiny.make_dataset()).loss_type == "own"
    args.scale_rewards = "own"
    with pytest.raises(ValueError, match="`scale_rewards` is 'own'"):
        OwnPODS(model_path, tiny.distinct_characters, args, tiny.make_dataset())


@pytest.mark.parametrize("name", CHOICES)
def test_case_110_the_values_are_those_that_trl_compares_with(name):
    method, values = CHOICES[name]
    source = inspect.getsource(getattr(GRPOTrainer, method))
    compared = re.findall(rf"self\.{name} (?:==|!=|in) (\[.*?\]|\".*?\")", source)
    assert {value for text in compared for value in re.findall(r'"(\w+)"', text)} == set(values)


def test_case_115_a_model_without_a_name_says_what_to_pass(tmp_path):
    tokenizer = tiny.make_tokenizer()
    model = tiny.make_model(tokenizer)
    judge = LlamaForSequenceClassification(model.config)

    def build(reward_funcs=tiny.distinct_characters, beta=0.0, **arguments):
        args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, beta=beta))
        return PODSGRPOTrainer(model, reward_funcs, args, tiny.make_dataset(), **arguments)

    with pytest.raises(ValueError, match=r"`processing_class` has no tokenizer for `model`, a `LlamaForCausalLM`"):
        build()
    with pytest.raises(ValueError, match=r"`beta` is 0.1, for which TRL loads the model a second time"):
        build(beta=0.1, processing_class=tokenizer)
    with pytest.raises(ValueError, match=r"`reward_processing_classes` has no tokenizer for the reward model 1"):
        build([tiny.distinct_characters, judge], processing_class=tokenizer)
    build(processing_class=tokenizer)


@pytest.mark.parametrize("column", ["prompts", "completions", "trainer_state", "log_extra", "log_metric"])
@pytest.mark.parametrize("of_evaluation", [False, True])
def test_case_106_a_column_with_the_name_of_a_keyword_is_refused(column, of_evaluation, build):
    data = tiny.make_dataset().add_column(column, ["x"] * 16)
    arguments = {"eval_dataset": {"test": data}} if of_evaluation else {"train_dataset": data}
    where = "`eval_dataset` 'test'" if of_evaluation else "`train_dataset`"
    with pytest.raises(ValueError, match=rf"{where} has the columns \['{column}'\].*Rename or remove them"):
        build(**arguments)
    build(**arguments, remove_unused_columns=True)  # which are removed


@pytest.mark.parametrize("column", ["completion", "completion_ids", "environments"])
def test_case_106_columns_that_trl_leaves_out_on_purpose_are_accepted(column, build):
    def reward(completions, completion_ids, **kwargs):
        assert all(isinstance(ids, list) for ids in completion_ids)
        return tiny.distinct_characters(completions)

    trainer = build(reward, train_dataset=tiny.make_dataset().add_column(column, ["x"] * 16))
    trainer.train()
    assert trainer.state.global_step == 2


@pytest.mark.parametrize("name", ["prompt", "completion", "step", "advantage", "kept", "trained"])
def test_case_106_a_reward_with_the_name_of_a_column_of_the_table_is_refused(name, build):
    def reward(completions, **kwargs):
        return tiny.distinct_characters(completions)

    reward.__name__ = name
    with pytest.raises(ValueError, match=rf"reward functions \['{name}'\] .*set `log_completions` to false"):
        build(reward, log_completions=True)
    build(reward)


def test_case_106_a_field_of_a_rollout_func_with_the_name_of_a_keyword_is_refused(build):
    def rollout_func(prompts, trainer):
        ids = [[5]] * len(prompts)
        return {"prompt_ids": ids, "completion_ids": ids, "logprobs": None, "completions": ["x"] * len(prompts)}

    with pytest.raises(ValueError, match=r"What `rollout_func` returned has the columns \['completions'\]"):
        build(rollout_func=rollout_func).train()


BAD_PROMPTS = [["a"] * 5 + [""] + ["b"] * 10, ["a"] * 5 + [None] + [""] * 10, [7] * 16]
BAD_PROMPTS += [[[{"role": "user", "content": "a"}]] * 5 + [bad] + [[]] * 10 for bad in ([], None)]


@pytest.mark.parametrize("prompts", BAD_PROMPTS)
@pytest.mark.parametrize("of_evaluation", [False, True])
def test_case_108_a_bad_prompt_is_named_by_its_row(prompts, of_evaluation, build):
    row = 0 if prompts[0] == 7 else 5
    data = Dataset.from_dict({"prompt": prompts})
    trainer = build(**({"eval_dataset": {"test": data}} if of_evaluation else {"train_dataset": data}))
    where = "`eval_dataset` 'test'" if of_evaluation else "`train_dataset`"
    message = rf"Row {row} of {where} has the prompt {re.escape(repr(prompts[row]))}, from which nothing"
    with pytest.raises(ValueError, match=message):
        trainer.train()
    if of_evaluation:
        with pytest.raises(ValueError, match=message):
            trainer.evaluate()
    shuffled = data.select([5, 0] * 8)
    with pytest.raises(ValueError, match="Row 0 of `train_dataset`"):
        build(train_dataset=shuffled).train()


def test_case_108_rows_that_are_not_selected_do_not_matter(build):
    data = Dataset.from_dict({"prompt": [None, *["a"] * 4]})
    build(train_dataset=data.select([1, 2, 3, 4]), max_steps=1).train()


def test_case_108_a_dataset_without_prompts_is_named(build):
    data = Dataset.from_dict({"question": ["a"] * 16})
    with pytest.raises(ValueError, match=r"`train_dataset` has the columns \['question'\], without `prompt`"):
        build(train_dataset=data).train()
    with pytest.raises(ValueError, match=r"`eval_dataset` has the columns \['question'\], without `prompt`"):
        build().evaluate(data)


def test_case_108_an_empty_prompt_is_one_where_the_tokenizer_begins_it(build):
    tokenizer = tiny.make_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<unk>"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<unk> $A", special_tokens=[("<unk>", 2)])
    trainer = build(train_dataset=Dataset.from_dict({"prompt": [""] * 16}), processing_class=tokenizer)
    trainer.train()
    assert trainer.state.global_step == 2


def test_case_107_a_model_of_which_nothing_is_trained_is_refused(build, model_path, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(model_path)
    get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_path), tmp_path / "adapter")
    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path))
    data = {"train_dataset": tiny.make_dataset(), "processing_class": tiny.make_tokenizer()}
    with pytest.raises(ValueError, match=r"Nothing of the model is trained.*is_trainable=True"):
        PODSGRPOTrainer(model, tiny.distinct_characters, args, **data).train()
    trainer = build(eval_dataset=tiny.make_dataset(4))
    trainer.model.requires_grad_(False)
    assert "eval_loss" in trainer.evaluate()
    with pytest.raises(ValueError, match=r"Nothing of the model is trained"):
        trainer.train()


@pytest.mark.parametrize("arguments", [{"max_steps": 0}, {"max_steps": -1, "num_train_epochs": 0}])
def test_case_117_no_steps_are_named_as_the_cause(arguments, build):
    name, value = list(arguments.items())[-1]
    with pytest.raises(ValueError, match=f"`{name}` is {value}, so nothing would be trained. Raise it"):
        build(**arguments).train()


def test_case_117_a_trainer_that_evaluates_needs_no_data_to_train_on(build):
    trainer = build(train_dataset=Dataset.from_dict({"prompt": [""]}), eval_dataset=tiny.make_dataset(4), max_steps=0)
    assert "eval_loss" in trainer.evaluate()


def test_case_118_a_service_that_is_not_installed_is_named_in_the_dry_run_and_in_the_run(in_tmp, model_path):
    assert find_spec("comet_ml") is None
    for arguments in (["--dry_run"], []):
        with pytest.raises(SetupError, match=r"recipe.yaml:\d+: `report_to` is \['comet_ml'\], .*comet"):
            grpo.run(["--config", recipe(in_tmp, model_path, report_to="comet_ml"), *arguments])


def test_case_110_the_dry_run_makes_the_optimizer(in_tmp, model_path):
    with pytest.raises(SetupError, match=r"optimizer and its schedule cannot be made: Invalid learning rate: -1"):
        grpo.run(["--config", recipe(in_tmp, model_path, learning_rate=-1.0), "--dry_run"])
    path = recipe(in_tmp, model_path, lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs={"min_lrr": 1})
    with pytest.raises(SetupError, match=r"optimizer and its schedule cannot be made: .*'min_lrr'"):
        grpo.run(["--config", path, "--dry_run"])


@pytest.mark.parametrize("overrides", [{"max_steps": 0}, {"loss_type": "gprpo"}, {"generation_kwargs": {"n": 2}}])
def test_cases_109_110_117_are_said_by_the_dry_run_with_their_line(overrides, in_tmp, model_path):
    with pytest.raises(SetupError, match=rf"recipe.yaml:\d+: `{next(iter(overrides))}` "):
        grpo.run(["--config", recipe(in_tmp, model_path, **overrides), "--dry_run"])


def test_case_109_options_of_vllm_are_not_taken_for_those_of_transformers(in_tmp, model_path, capsys):
    assert find_spec("vllm") is None
    arguments = {"use_vllm": True, "generation_kwargs": {"min_tokens": 2}}
    grpo.run(["--config", recipe(in_tmp, model_path, **arguments), "--dry_run"])
    assert "vLLM, which is not started" in " ".join(capsys.readouterr().out.split())
    arguments["generation_kwargs"] = {"max_tokens": 2}
    with pytest.raises(SetupError, match=r"`generation_kwargs` sets 'max_tokens' to 2, but completions end"):
        grpo.run(["--config", recipe(in_tmp, model_path, **arguments), "--dry_run"])


def test_case_119_a_file_that_is_not_there_is_not_looked_for_on_the_hub(in_tmp, model_path):
    for name, message in [
        ("data/trian.jsonl", r"Did you mean 'data/train.jsonl'\?"),
        ("data/x.csv", r"Did you mean 'data/train.jsonl'\?"),
        ("date/train.jsonl", r"There is no folder 'date' either"),
    ]:
        for arguments in ([], ["--dry_run"]):
            with pytest.raises(SetupError, match=rf":\d+: `dataset_name` is '{name}', but there is no .*{message}"):
                grpo.run(["--config", recipe(in_tmp, model_path, dataset_name=name), *arguments])


@pytest.mark.parametrize("name", ["./start_model", "runs/mine/start_model", "/no/start_model"])
def test_case_119_a_model_folder_that_is_not_there_is_not_looked_for_on_the_hub(name, in_tmp, model_path):
    for arguments in ([], ["--dry_run"]):
        with pytest.raises(SetupError, match=rf":\d+: `model_name_or_path` is '{name}', but there is no such folder"):
            grpo.run(["--config", recipe(in_tmp, model_path, model_name_or_path=name), *arguments])


@pytest.mark.parametrize("as_folder", [False, True])
@pytest.mark.parametrize(
    ("file", "streaming"), [("data/train.jsonl", False), ("data/train.jsonl", True), ("data/train.json", False)]
)
def test_case_98_dates_arrive_as_the_text_of_the_file(file, streaming, as_folder, in_tmp):
    (in_tmp / "data").mkdir()
    dates = ["2024-01-01", "2024-02-29T10:00:00Z", None]
    rows = [{"question": "Day?", "answer": date, "times": [date], "more": {"on": date}, "n": 1} for date in dates]
    lines = [json.dumps(row) for row in rows]
    (in_tmp / file).write_text("\n".join(lines) if file.endswith("l") else f"[{','.join(lines)}]")
    data = load_named("data" if as_folder else file, streaming=streaming)
    assert list(data["train"]) == rows
    adapted = adapt(data, "question_answer", conversational=True)["train"]
    assert [row["solution"] for row in adapted] == dates


@pytest.mark.parametrize("questions", [["q", None], [1.0, float("nan")]])
def test_case_98_a_question_that_is_missing_is_named_by_its_row(questions):
    rows = Dataset.from_dict({"question": questions, "answer": ["1", None]})
    with pytest.raises(ValueError, match=r"column 'question' of the split 'test' holds None in row 1, .*not text"):
        adapt(DatasetDict(test=rows), "question_answer", conversational=True)


@pytest.mark.parametrize("column", ["messages", "conversations"])
def test_case_98_conversations_are_not_sent_to_an_adapter(column):
    data = DatasetDict(train=Dataset.from_dict({column: [[{"role": "user", "content": "q"}]]}))
    with pytest.raises(ValueError, match=rf"No adapter reads whole conversations, as `{column}`"):
        check_prompts(data)


INTERRUPTING = """
import os, signal

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
calls = 0

def interrupt(completions, **kwargs):
    global calls
    calls += 1
    if calls == 3:
        os.kill(os.getpid(), signal.SIGINT)
    return [float(len(set(c))) for c in completions]
"""


@pytest.mark.long
def test_case_121_an_interrupted_run_says_where_it_stopped_and_how_to_resume(in_tmp, model_path):
    (in_tmp / "interrupting.py").write_text(INTERRUPTING)
    overrides = {"reward_funcs": ["interrupting.interrupt"], "max_steps": 5}
    done = commands.run("grpo", "--config", recipe(in_tmp, model_path, **overrides), cwd=in_tmp)
    assert done.returncode == 130
    assert "Interrupted at step 2 of 5. No checkpoint was saved to resume from. Set `save_steps`" in done.stderr
    path = recipe(in_tmp, model_path, **overrides, save_strategy="steps", save_steps=1)
    done = commands.run("grpo", "--config", path, cwd=in_tmp)
    assert "Interrupted at step 2 of 5. To resume from out/checkpoint-2, run the same" in done.stderr.replace(
        f"{in_tmp}/", ""
    )
    assert "Traceback" not in done.stderr
    done = commands.run("grpo", "--config", path, "--resume_from_checkpoint=true", "--max_steps=4", cwd=in_tmp)
    assert done.returncode == 0
    assert f"Resuming after step 2, from {in_tmp}/out/checkpoint-2." in done.stderr


def test_case_121_other_commands_end_without_a_traceback_too(capsys):
    with pytest.raises(SystemExit) as stop, exit_on_user_error("trl-pods report"):
        raise KeyboardInterrupt
    assert stop.value.code == 130
    assert capsys.readouterr().err == "\ntrl-pods report: interrupted\n"
