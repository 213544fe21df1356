"""Server mode, against a stand-in for the server: what it is asked, and that its answers stay with their prompts."""

import pytest
import torch
from engine import EVALUATION, make_trainer, trained_weight
from peft import LoraConfig
from recording import Judge, assert_aligned
from serving import completion_of, keep_weights_here, log_probs_of, serve, server_arguments


@pytest.fixture
def server():
    with serve() as server:
        yield server


@pytest.fixture
def updates(monkeypatch) -> list[dict]:
    return keep_weights_here(monkeypatch)


def make_server_trainer(model_path, output_dir, server, judge, **arguments):
    return make_trainer(model_path, judge, output_dir, **server_arguments(server.url), **arguments)


def assert_answers_belong_to_prompts(trainer, batches: list[dict], num_completions: int) -> None:
    """Check that every row is an answer to its own prompt, with the log-probs that came with it."""
    for inputs in batches:
        sampled = inputs["sampling_per_token_logps"]
        for i, row in enumerate(trainer.rows(inputs)):
            prompt_ids = inputs["prompt_ids"][i][inputs["prompt_mask"][i].bool()].tolist()
            completion = list(row["completion"])
            assert completion in [completion_of(prompt_ids, place) for place in range(num_completions)]
            expected = torch.tensor(log_probs_of(completion))
            torch.testing.assert_close(sampled[i, : len(completion)], expected)


@pytest.mark.feature("vLLM, served: requests")
@pytest.mark.parametrize("num_rollouts", [4, 6, 16])
def test_each_prompt_is_asked_once_for_n_completions(num_rollouts, vllm_model_path, tmp_path, server, updates):
    judge = Judge()
    trainer = make_server_trainer(vllm_model_path, tmp_path, server, judge, num_rollouts=num_rollouts, max_steps=3)
    trainer.train()
    assert [(len(body["prompt"]), body["n"]) for body in server.asked] == [(2, num_rollouts)] * 3
    assert all(body["prompt"][0] != body["prompt"][1] for body in server.asked)
    assert judge.num_rows == [2 * num_rollouts] * 3
    assert_answers_belong_to_prompts(trainer, trainer.trained, num_rollouts)
    assert_aligned(trainer)


def test_case_59_training_asks_for_n_and_evaluation_for_its_own_number(vllm_model_path, tmp_path, server, updates):
    judge = Judge()
    trainer = make_server_trainer(
        vllm_model_path,
        tmp_path,
        server,
        judge,
        **EVALUATION,
    )
    trainer.train()
    assert [(len(body["prompt"]), body["n"]) for body in server.asked] == [(2, 16), (4, 2)] * 2
    assert judge.num_rows == [32, 8] * 2
    assert_answers_belong_to_prompts(trainer, trainer.trained, 16)
    assert_answers_belong_to_prompts(trainer, trainer.evaluated, 2)
    assert_aligned(trainer)


@pytest.mark.parametrize("with_lora", [False, True])
def test_the_server_gets_the_weights_once_a_step(with_lora, vllm_model_path, tmp_path, server, updates):
    trainer = make_server_trainer(
        vllm_model_path,
        tmp_path,
        server,
        Judge(),
        peft_config=LoraConfig(r=4, target_modules="all-linear") if with_lora else None,
        steps_per_generation=2,
        per_device_train_batch_size=4,
        max_steps=6,
    )
    trainer.train()
    assert len(updates) == len(server.asked) == 3
    name = "model.layers.1.self_attn.o_proj.weight"
    assert not any("lora" in other for other in updates[0])
    assert not torch.equal(updates[0][name], updates[1][name])
    trainer.vllm_generation.sync_weights()
    torch.testing.assert_close(updates[-1][name], trained_weight(trainer, name), rtol=0, atol=1e-7)
