"""A colocated engine: kept rows keep their log-probs, the engine follows the weights, and n rollouts fit in it."""

import math

import pytest
import tiny
import torch
from engine import (
    EVALUATION,
    PATTERN,
    Rows,
    assert_structured,
    engine_weight,
    make_trainer,
    trained_weight,
    vllm_arguments,
)
from peft import LoraConfig
from recording import Judge, assert_aligned, expected_score
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer
from vllm import LLM

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer

NUM_STEPS = 30


def early_letters(completions, **kwargs) -> list[float]:
    """An easy reward: the share of letters from a to m."""
    return [sum("a" <= letter <= "m" for letter in text) / 12 for text in completions]


def lora() -> LoraConfig:
    return LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", lora_dropout=0.0)


@pytest.fixture(scope="module", params=["full", "lora"])
def run(request, vllm_model_path, tmp_path_factory):
    """A training of 2 prompts x 16 rollouts, of which 4 are kept, on an easy reward."""
    trainer = make_trainer(
        vllm_model_path,
        early_letters,
        tmp_path_factory.mktemp(request.param),
        peft_config=lora() if request.param == "lora" else None,
        beta=0.05,
        learning_rate=3e-3 if request.param == "lora" else 5e-4,
        max_steps=NUM_STEPS,
    )
    trainer.train()
    return trainer


@pytest.mark.feature("vLLM, colocated")
def test_the_reward_of_all_rollouts_rises(run):
    rewards = run.logged("reward")
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    print(f"reward of steps 1 to 5: {first:.3f}, of the last 5: {last:.3f}")
    assert last > first + 0.2


def test_log_probs_of_kept_rows_belong_to_their_tokens(run):
    differences = run.logged("sampling/sampling_logp_difference/mean")
    print(f"difference of log-probs: mean {sum(differences) / len(differences):.4f}, max {max(differences):.4f}")
    assert len(differences) == NUM_STEPS
    assert max(differences) < 0.02


def test_log_probs_of_another_row_would_be_noticed(run):
    """The control of the test above: in the first batch, the log-probs of the next row are far off."""
    inputs = run.trained[0]
    mask = inputs["completion_mask"].bool()
    sampled = inputs["sampling_per_token_logps"]
    assert (inputs["old_per_token_logps"] - sampled)[mask].abs().mean() < 0.02
    assert (inputs["old_per_token_logps"] - sampled.roll(1, dims=0))[mask].abs().mean() > 0.2


def test_forward_passes_see_the_kept_rows_only(run):
    # Old and reference log-probs, each of P m = 8 rows, from P n = 32 rollouts.
    assert run.num_rows == Rows([32] * NUM_STEPS, [8] * 2 * NUM_STEPS, [8] * NUM_STEPS)


def test_case_60_the_engine_holds_the_rollouts_of_a_generation_batch(run):
    config = run.vllm_generation.llm.llm_engine.vllm_config.scheduler_config
    assert config.max_num_seqs == 2 * 16


def test_case_63_generating_leaves_the_weights_as_they_were(run):
    """But for rounding: LoRA is added to the base weights to be sent to the engine, and subtracted again."""
    assert len(run.moved) == NUM_STEPS
    largest = {name: max(moved[name] for moved in run.moved) for name in run.moved[0]}
    trained = {name: moved for name, moved in largest.items() if run.model.get_parameter(name).requires_grad}
    print(f"largest change of a weight by a generation: {max(largest.values()):.2g}")
    assert max(trained.values()) == 0
    assert max(largest.values()) < 1e-7


def test_case_63_the_engine_follows_the_weights(run):
    name = "model.layers.1.self_attn.o_proj.weight"
    before, expected = engine_weight(run, name).clone(), trained_weight(run, name)
    run.vllm_generation.sync_weights()
    after = engine_weight(run, name)
    assert torch.equal(after, expected.to(after.dtype))
    assert not torch.equal(after, before), "the last step moved no weight, so nothing was checked"


def test_every_prompt_row_is_one_request(vllm_model_path, tmp_path, requests):
    judge = Judge()
    trainer = make_trainer(vllm_model_path, judge, tmp_path)
    trainer.train()
    # TRL sends a colocated engine P n prompts with one completion each; the prefix cache joins equal ones.
    assert requests == [(32, 1)] * 2
    assert judge.num_rows == [32] * 2
    for prompts, _, _ in trainer.sampled:
        assert prompts == [prompts[0]] * 16 + [prompts[16]] * 16 and prompts[0] != prompts[16]
    assert_aligned(trainer)


@pytest.mark.feature("vLLM importance sampling")
@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask", None])
def test_importance_ratios_are_those_of_the_kept_rows(mode, vllm_model_path, tmp_path):
    correction = {"vllm_importance_sampling_mode": mode} if mode else {"vllm_importance_sampling_correction": False}
    trainer = make_trainer(vllm_model_path, Judge(), tmp_path, vllm_importance_sampling_clip_max=1.005, **correction)
    trainer.train()
    assert_aligned(trainer)
    for inputs in trainer.trained:
        if mode is None:
            assert "importance_sampling_ratio" not in inputs
            return
        mask = inputs["completion_mask"]
        difference = (inputs["old_per_token_logps"] - inputs["sampling_per_token_logps"]) * mask
        if mode.startswith("sequence"):
            difference = difference.sum(dim=1, keepdim=True)
        ratio, cut = difference.exp(), difference.exp() > 1.005
        expected = ratio.masked_fill(cut, 1.005 if mode.endswith("truncate") else 0.0)
        assert cut.any() and not cut.all(), "the limit does not tell rows apart"
        torch.testing.assert_close(inputs["importance_sampling_ratio"], expected)
    masked = [
        (inputs["importance_sampling_ratio"] * inputs["completion_mask"]).sum(1) == 0 for inputs in trainer.trained
    ]
    assert trainer.logged("pods/frac_rows_masked") == pytest.approx([rows.float().mean().item() for rows in masked])


@pytest.mark.parametrize(
    "options", [{"zero_variance": "skip"}, {"zero_variance": "drop"}, {"prompt_oversampling": 2}], ids=str
)
def test_prompts_are_left_out_with_lora(options, vllm_model_path, tmp_path):
    """Old log-probs, importance ratios and the update are of the rows that are left; the reward rises."""

    def for_odd_prompts(completions, target, **kwargs):
        rewards = early_letters(completions)
        return [reward if number % 2 else 0.5 for reward, number in zip(rewards, target, strict=True)]

    sizes = {"per_device_train_batch_size": 16, "num_rollouts": 8, "max_steps": NUM_STEPS, "learning_rate": 3e-3}
    trainer = make_trainer(vllm_model_path, for_odd_prompts, tmp_path, peft_config=lora(), **sizes, **options)
    trainer.train()
    trained = trainer.logged("pods/trained_rows")
    num_prompts = 4 * options.get("prompt_oversampling", 1)
    assert trainer.num_rows.generated == [8 * num_prompts] * NUM_STEPS
    assert trainer.num_rows.without_gradient == trainer.num_rows.policy == trained
    assert set(trained) <= {4, 8, 12, 16} and min(trained) < 16
    rewards = trainer.logged("reward")
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    print(f"rows trained: {sum(trained) / NUM_STEPS:.1f} of 16; reward: first {first:.3f}, last {last:.3f}")
    assert last > first + 0.1
    assert max(trainer.logged("sampling/sampling_logp_difference/mean")) < 0.02


@pytest.mark.feature("vLLM structured outputs")
def test_structured_outputs_are_kept_like_any_other(vllm_model_path, tmp_path):
    assert_structured(vllm_model_path, tmp_path)


def test_case_61_a_log_prob_that_the_engine_lacks_does_not_reach_the_loss(vllm_model_path, tmp_path, monkeypatch):
    generate = LLM.generate

    def without_first_log_prob(self, *args, **kwargs):
        outputs = generate(self, *args, **kwargs)
        for output in outputs:
            [log_prob] = output.outputs[0].logprobs[0].values()
            log_prob.logprob = math.nan
        return outputs

    monkeypatch.setattr(LLM, "generate", without_first_log_prob)
    trainer = make_trainer(vllm_model_path, Judge(), tmp_path, vllm_importance_sampling_mode="token_truncate")
    trainer.train()
    assert_aligned(trainer)
    for inputs in trainer.trained:
        assert inputs["sampling_per_token_logps"][:, 0].isnan().all()
        assert (inputs["importance_sampling_ratio"][:, 0] == 1).all()
    assert all(map(math.isfinite, [*trainer.losses, *trainer.logged("grad_norm")]))
    assert max(trainer.logged("sampling/sampling_logp_difference/mean")) < 0.02


@pytest.mark.parametrize("case", ["full", "lora", "structured"])
def test_n_equal_m_is_grpo_bit_for_bit(case, vllm_model_path, tmp_path):
    def train(trainer_class, config_class, **arguments):
        arguments = vllm_arguments(
            tmp_path / trainer_class.__name__,
            num_generations=16,
            per_device_train_batch_size=32,
            beta=0.05,
            max_steps=3,
            vllm_structured_outputs_regex=PATTERN if case == "structured" else None,
        )
        if trainer_class is GRPOTrainer:
            del arguments["num_rollouts"]
        set_seed(0)
        trainer = trainer_class(
            model=vllm_model_path,
            reward_funcs=tiny.distinct_characters,
            args=config_class(**arguments),
            train_dataset=tiny.make_dataset(),
            peft_config=lora() if case == "lora" else None,
        )
        set_seed(0)  # the engine samples from torch's global generator, which its start-up moves
        trainer.train()
        return trainer

    grpo, pods = train(GRPOTrainer, GRPOConfig), train(PODSGRPOTrainer, PODSGRPOConfig)
    expected, found = tiny.trained_parameters(grpo), tiny.trained_parameters(pods)
    for name in expected:
        assert torch.equal(expected[name], found[name]), name
    rewards = [[log["reward"] for log in trainer.state.log_history if "reward" in log] for trainer in (grpo, pods)]
    assert rewards[0] == rewards[1]


def test_evaluation_takes_num_generations_eval(vllm_model_path, tmp_path, requests):
    judge = Judge()
    trainer = make_trainer(
        vllm_model_path,
        judge,
        tmp_path,
        **EVALUATION,
    )
    trainer.train()
    assert requests == [(32, 1), (8, 1)] * 2
    assert judge.num_rows == [32, 8] * 2
    for inputs, (prompts, _, _), reward in zip(
        trainer.evaluated, trainer.sampled[1::2], trainer.logged("eval_reward"), strict=True
    ):
        rows = trainer.rows(inputs)
        assert sorted(row["number"] for row in rows) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert prompts[::2] == prompts[1::2]
        assert reward == pytest.approx(sum(map(expected_score, rows)) / 8, abs=1e-6)
    assert_aligned(trainer)


def kept_rows(trainer) -> list[list[tuple]]:
    """For each step: number in the prompt, completion and advantage of the trained rows, in a fixed order."""
    return [
        sorted((row["number"], row["completion"], row["advantage"]) for row in trainer.rows(inputs))
        for inputs in trainer.trained
    ]


@pytest.mark.parametrize("rule", ["max_variance", "random", "length_aware_max_variance"])
def test_the_same_completions_are_kept_whatever_generated_them(rule, vllm_model_path, tmp_path):
    arguments = {"down_sampling": rule, "max_steps": 3}
    with_vllm = make_trainer(vllm_model_path, Judge(), tmp_path / "vllm", **arguments)
    with_vllm.train()
    sampled = iter(with_vllm.sampled)

    def replay(prompts, trainer):
        prompt_ids, completion_ids, logprobs = next(sampled)
        assert trainer.processing_class(prompts)["input_ids"] == prompt_ids
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}

    replayed = make_trainer(
        vllm_model_path, Judge(), tmp_path / "replayed", rollout_func=replay, use_vllm=False, **arguments
    )
    replayed.train()
    assert len(kept_rows(with_vllm)) == 3
    assert kept_rows(with_vllm) == kept_rows(replayed)


def test_sleep_mode(vllm_model_path, tmp_path):
    try:
        trainer = make_trainer(vllm_model_path, Judge(), tmp_path, vllm_enable_sleep_mode=True)
    except ValueError as error:
        if "Sleep mode is not supported on current platform" not in str(error):
            raise
        pytest.skip("vLLM: Sleep mode is not supported on current platform.")
    trainer.train()
    assert_aligned(trainer)
    assert max(trainer.logged("sampling/sampling_logp_difference/mean")) < 0.02
