"""Start models: their tokenizer, what they are taught, and when they are made."""

import random

import pytest
import torch
from datasets import DatasetDict
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_pods.examples import start_models
from trl_pods.examples.start_models import Problem, make_start_model, make_tokenizer, shuffled_or_another

PROBLEMS = [
    Problem("What is 1 + 2?\nSay it: ", "3"),
    Problem("What is 14 - (2)?\nSay it: ", "12"),
    Problem("What is 5 × 6\t?\nSay it: ", "30."),
]
SETTINGS = {"size": 20, "test_size": 5, "max_terms": 2, "max_digits": 1}


def test_the_start_and_end_of_all_prompts_are_one_token_each():
    tokenizer = make_tokenizer(PROBLEMS)
    for prompt, answer in PROBLEMS:
        ids = tokenizer(prompt + answer)["input_ids"]
        tokens = tokenizer.convert_ids_to_tokens(ids)
        middle = prompt.removeprefix("What is ").removesuffix("?\nSay it: ")
        assert tokens == ["What is ", *middle, "?\nSay it: ", *answer]
        assert tokenizer.decode(ids) == prompt + answer
    assert tokenizer.chat_template is None


def test_prompts_without_anything_in_common_are_characters():
    tokenizer = make_tokenizer([Problem("ab", "c"), Problem("cd", "e")])
    assert tokenizer.convert_ids_to_tokens(tokenizer("abcde")["input_ids"]) == list("abcde")


def test_case_can_be_ignored():
    tokenizer = make_tokenizer([Problem("Spell AB", "ba"), Problem("Spell CD", "dc")], lowercase=True)
    assert tokenizer("Spell AB")["input_ids"] == tokenizer("spell ab")["input_ids"]


def test_answers_are_taught_and_prompts_are_not(tmp_path):
    make_start_model(tmp_path, PROBLEMS, shuffled_or_another, num_fine_tuned=2, num_corrupted=1)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    losses = [
        start_models._supervised_loss(model, tokenizer, [prompt], [answer]).item() for prompt, answer in PROBLEMS[:2]
    ]
    for (prompt, answer), loss in zip(PROBLEMS, losses):
        ids = tokenizer(prompt + answer + tokenizer.eos_token, return_tensors="pt")["input_ids"]
        logps = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])
        assert loss == pytest.approx(-logps[-len(answer) - 1 :].mean().item(), abs=1e-5)
    # Padding of the shorter row counts for nothing.
    together = start_models._supervised_loss(model, tokenizer, *map(list, zip(*PROBLEMS[:2]))).item()
    assert together == pytest.approx((2 * losses[0] + 3 * losses[1]) / 5, abs=1e-5)


def test_the_same_seed_makes_the_same_model_and_another_another(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_start_model(tmp_path / name, PROBLEMS, shuffled_or_another, seed=seed, num_fine_tuned=2, num_corrupted=2)
    a, b, c = (
        torch.cat([p.flatten() for p in AutoModelForCausalLM.from_pretrained(tmp_path / name).parameters()])
        for name in "abc"
    )
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_wrong_answers_are_mostly_wrong():
    rng = random.Random(0)
    problems = [Problem("", str(number)) for number in range(100)]
    for answer in ("7", "12", "abc"):
        wrong = [shuffled_or_another(answer, problems, rng) for _ in range(200)]
        assert sum(text != answer for text in wrong) > 180


@pytest.fixture
def quick(monkeypatch):
    """Teaching of a step or two."""

    def make(folder, problems, wrong_answer, **settings):
        make_start_model(folder, problems, wrong_answer, **(settings | {"num_fine_tuned": 1, "num_corrupted": 1}))

    monkeypatch.setattr(start_models, "make_start_model", make)


@pytest.mark.usefixtures("quick")
def test_it_is_made_once_and_for_one_task(tmp_path):
    folder = tmp_path / "start"
    start_models.prepare(str(folder), "chain_sum", SETTINGS)
    made = (folder / "model.safetensors").stat().st_mtime_ns
    start_models.prepare(str(folder), "chain_sum", SETTINGS)
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    with pytest.raises(ValueError, match=r"is '.*start', an initial checkpoint for .*Remove the folder"):
        start_models.prepare(str(folder), "chain_sum", SETTINGS | {"max_digits": 2})
    (folder / start_models.MADE_FOR).unlink()  # as of a model from elsewhere, which may be trained on any task
    start_models.prepare(str(folder), "gcd")


def test_what_is_cut_off_does_not_count_as_made(tmp_path, monkeypatch):
    def end_early(folder, *args, **kwargs):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(start_models, "make_start_model", end_early)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            start_models.prepare(str(tmp_path / "start"), "chain_sum", SETTINGS)
        assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("quick")
def test_held_out_problems_are_not_taught(tmp_path, monkeypatch):
    loaded = {}

    def load(task, task_kwargs):
        data = start_models_load(task, task_kwargs)
        loaded.update(data)
        return DatasetDict(train=data["train"])  # there is no test split to look at

    start_models_load = start_models.load_task
    monkeypatch.setattr(start_models, "load_task", load)
    start_models.prepare(str(tmp_path / "start"), "chain_sum", SETTINGS)
    assert len(loaded["test"]) == 5


def test_a_task_without_answers_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'graph_color' come without answers"):
        start_models.prepare(str(tmp_path / "start"), "graph_color", {"size": 4, "test_size": 2})
    assert not (tmp_path / "start").exists()
