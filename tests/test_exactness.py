"""Plain `GRPOTrainer` as the oracle: the same bits with n = m, the same update on the kept rows with n > m."""

import itertools

import pytest
import tiny
import torch
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer

LOSS_TYPES = ["grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"]


def train(trainer_class, config_class, model_path, output_dir, *, lora=False, reward_funcs=None, **arguments):
    peft_config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", lora_dropout=0.0) if lora else None
    trainer = trainer_class(
        model=model_path,
        reward_funcs=reward_funcs or tiny.distinct_characters,
        args=config_class(**tiny.default_arguments(output_dir, **arguments)),
        train_dataset=tiny.make_dataset(),
        peft_config=peft_config,
    )
    start = tiny.trained_parameters(trainer)
    trainer.train()
    end = tiny.trained_parameters(trainer)
    assert any(not torch.equal(start[name], end[name]) for name in end), "nothing was trained"
    return end


def assert_same_bits(model_path, tmp_path, **arguments):
    arguments = {"max_steps": 4} | arguments
    grpo = train(GRPOTrainer, GRPOConfig, model_path, tmp_path / "grpo", **arguments)
    pods = train(PODSGRPOTrainer, PODSGRPOConfig, model_path, tmp_path / "pods", num_rollouts=4, **arguments)
    assert grpo.keys() == pods.keys()
    for name in grpo:
        assert torch.equal(grpo[name], pods[name]), name


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_n_equal_m_is_grpo_bit_for_bit_for_every_loss(loss_type, model_path, tmp_path):
    assert_same_bits(model_path, tmp_path, loss_type=loss_type, beta=0.1, num_iterations=2)


@pytest.mark.feature("`num_iterations`, `steps_per_generation`")
@pytest.mark.parametrize(
    ("beta", "num_iterations", "steps_per_generation", "lora"),
    list(itertools.product([0.0, 0.1], [1, 2], [1, 4], [False, True])),
)
def test_n_equal_m_is_grpo_bit_for_bit(beta, num_iterations, steps_per_generation, lora, model_path, tmp_path):
    assert_same_bits(
        model_path,
        tmp_path,
        beta=beta,
        num_iterations=num_iterations,
        steps_per_generation=steps_per_generation,
        lora=lora,
        per_device_train_batch_size=8 // steps_per_generation,
    )


class _Recording:
    """Records the rows that a generation batch goes on with, and makes what follows repeatable."""

    def _generate(self, prompts):
        generated = super()._generate(prompts)
        self.recorded = [*getattr(self, "recorded", []), (list(generated[0]), list(generated[1]))]
        torch.manual_seed(len(self.recorded))  # TRL shuffles the rows next
        return generated


class RecordingPODS(_Recording, PODSGRPOTrainer):
    pass


class ReplayingGRPO(_Recording, GRPOTrainer):
    """Plain GRPO whose generation returns the given completions."""

    replay: list = []

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, *args, **kwargs):
        expected_prompt_ids, completion_ids = self.replay[len(getattr(self, "recorded", []))]
        assert prompt_ids == expected_prompt_ids
        return [list(ids) for ids in completion_ids], None


def assert_same_update(model_path, tmp_path, rule="max_variance", **arguments):
    """Train with n > m, then plain GRPO on the very rows that were kept: the same parameters, but for rounding."""
    arguments = {
        "beta": 0.1,
        "num_iterations": 2,
        "steps_per_generation": 2,
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 4,
        "max_steps": 3,
    } | arguments
    pods = RecordingPODS(
        model=model_path,
        reward_funcs=tiny.distinct_characters,
        args=PODSGRPOConfig(
            **tiny.default_arguments(tmp_path / "pods", num_rollouts=12, down_sampling=rule, **arguments)
        ),
        train_dataset=tiny.make_dataset(),
    )
    start = tiny.trained_parameters(pods)
    pods.train()
    grpo = ReplayingGRPO(
        model=model_path,
        reward_funcs=tiny.distinct_characters,
        args=GRPOConfig(**tiny.default_arguments(tmp_path / "grpo", **arguments)),
        train_dataset=tiny.make_dataset(),
    )
    grpo.replay = pods.recorded
    grpo.train()
    expected, found = tiny.trained_parameters(grpo), tiny.trained_parameters(pods)
    assert any(not torch.equal(start[name], found[name]) for name in found), "nothing was trained"
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-7, msg=name)


@pytest.mark.feature("every `loss_type`")
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("rule", ["max_variance", "random"])
def test_n_greater_m_updates_as_grpo_does_on_the_kept_rows(loss_type, rule, model_path, tmp_path):
    assert_same_update(model_path, tmp_path, rule, loss_type=loss_type)


@pytest.mark.feature("`delta`, `entropy_coef`, `top_entropy_quantile`")
@pytest.mark.feature("`importance_sampling_level`, `sync_ref_model`, `use_bias_correction_kl`")
@pytest.mark.parametrize(
    "option",
    [
        {"importance_sampling_level": "sequence"},
        {"delta": 1.5},
        {"top_entropy_quantile": 0.5},
        {"entropy_coef": 0.01},
        {"sync_ref_model": True, "ref_model_sync_steps": 1},
        {"use_bias_correction_kl": True},
        {"mask_truncated_completions": True, "max_completion_length": 24},
        {"scale_rewards": "batch"},
    ],
    ids=lambda option: next(iter(option)),
)
def test_options_of_the_update_do_as_in_grpo_on_the_kept_rows(option, model_path, tmp_path):
    assert_same_update(model_path, tmp_path, **option)


class CountingPODS(PODSGRPOTrainer):
    """Counts the rows of every forward pass that TRL makes for log-probs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rows = {"old": [], "reference": [], "policy": [], "generated": [], "rewarded": []}

    def _get_per_token_logps_and_entropies(self, model, input_ids, *args, **kwargs):
        kind = "policy" if torch.is_grad_enabled() else "reference" if model is self.ref_model else "old"
        self.rows[kind].append(input_ids.size(0))
        return super()._get_per_token_logps_and_entropies(model, input_ids, *args, **kwargs)

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        self.rows["generated"].append(len(prompt_ids))
        return super()._generate_single_turn(prompt_ids, *args, **kwargs)


def test_forward_passes_see_the_kept_rows_only(model_path, tmp_path):
    rewarded = []

    def reward(completions, **kwargs):
        rewarded.append(len(completions))
        return tiny.distinct_characters(completions)

    trainer = CountingPODS(
        model=model_path,
        reward_funcs=reward,
        args=PODSGRPOConfig(
            **tiny.default_arguments(tmp_path, num_rollouts=20, beta=0.1, num_iterations=2, max_steps=4)
        ),
        train_dataset=tiny.make_dataset(),
    )
    trainer.train()
    # P = 2 prompts, n = 20, m = 4: two generation batches of 40 rollouts and 8 kept rows, each trained twice.
    assert trainer.rows["generated"] == rewarded == [40, 40]
    assert trainer.rows["old"] == trainer.rows["reference"] == [8, 8]
    assert trainer.rows["policy"] == [8, 8, 8, 8]


def test_the_update_does_not_see_the_longest_dropped_rollout(model_path, tmp_path):
    """Completions are padded to the longest kept one."""

    def rollouts(prompts, trainer):
        tokenizer = trainer.processing_class
        rows = len(prompts)
        lengths = [1 + i % trainer.num_generations for i in range(rows)]  # 1 to n
        return {
            "prompt_ids": [tokenizer(p)["input_ids"] for p in prompts],
            "completion_ids": [[5] * length for length in lengths],
            "logprobs": [[0.0] * length for length in lengths],
        }

    class Widths(PODSGRPOTrainer):
        widths = []

        def _compute_loss(self, model, inputs):
            self.widths.append(inputs["completion_ids"].size(1))
            return super()._compute_loss(model, inputs)

    trainer = Widths(
        model=model_path,
        reward_funcs=lambda completions, **kwargs: [-float(len(c)) for c in completions],
        args=PODSGRPOConfig(**tiny.default_arguments(tmp_path, num_rollouts=16, down_sampling="max_reward")),
        train_dataset=tiny.make_dataset(),
        rollout_func=rollouts,
    )
    trainer.train()
    assert Widths.widths == [4, 4]  # the m = 4 shortest of 16
