"""Plain `GRPOTrainer` as the oracle: the same bits with n = m, the same update on the kept rows with n > m."""

import itertools

import pytest
import tiny
import torch
from peft import LoraConfig
from transformers import Qwen3MoeConfig
from trl import GRPOConfig, GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer

LOSS_TYPES = ["grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"]

# Updates from 1 prompt at a time, of completions that an older model generated.
UPDATE = {
    "beta": 0.1,
    "num_iterations": 2,
    "steps_per_generation": 2,
    "gradient_accumulation_steps": 2,
    "per_device_train_batch_size": 4,
    "max_steps": 3,
}


def make_trainer(trainer_class, model_path, output_dir, *, lora=False, conversational=False, **arguments):
    config_class = PODSGRPOConfig if issubclass(trainer_class, PODSGRPOTrainer) else GRPOConfig
    return trainer_class(
        model=model_path,
        reward_funcs=tiny.distinct_characters,
        args=config_class(**tiny.default_arguments(output_dir, **arguments)),
        train_dataset=tiny.make_dataset(conversational=conversational),
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", lora_dropout=0.0) if lora else None,
    )


def train(trainer) -> dict[str, torch.Tensor]:
    start = tiny.trained_parameters(trainer)
    trainer.train()
    end = tiny.trained_parameters(trainer)
    assert differ(start, end), "nothing was trained"
    return end


def differ(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(some[name], others[name]) for name in some)


def train_grpo(model_path, output_dir, **arguments) -> dict[str, torch.Tensor]:
    """What [`assert_same_bits`] compares with."""
    return train(make_trainer(GRPOTrainer, model_path, output_dir, **{"max_steps": 4} | arguments))


def assert_same_bits(model_path, tmp_path, **arguments) -> dict[str, torch.Tensor]:
    """Train with n = m and as plain GRPO: the same parameters, which are returned."""
    arguments = {"max_steps": 4} | arguments
    grpo = train_grpo(model_path, tmp_path / "grpo", **arguments)
    arguments |= {"num_rollouts": 4, "zero_variance": "train"}
    pods = train(make_trainer(PODSGRPOTrainer, model_path, tmp_path / "pods", **arguments))
    assert grpo.keys() == pods.keys()
    for name in grpo:
        assert torch.equal(grpo[name], pods[name]), name
    return grpo


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_n_equal_m_is_grpo_bit_for_bit_for_every_loss(loss_type, model_path, tmp_path):
    assert_same_bits(model_path, tmp_path, loss_type=loss_type, beta=0.1, num_iterations=2)


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

    def record(self, generated):
        self.recorded = [*getattr(self, "recorded", []), (list(generated[0]), list(generated[1]))]
        torch.manual_seed(len(self.recorded))  # TRL shuffles the rows next
        return generated


class RecordingPODS(_Recording, PODSGRPOTrainer):
    def _narrow(self, *args):
        return self.record(super()._narrow(*args))


class ReplayingGRPO(_Recording, GRPOTrainer):
    """Plain GRPO whose generation returns the given completions."""

    def _generate(self, prompts):
        return self.record(super()._generate(prompts))

    replay: list = []

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, *args, **kwargs):
        expected_prompt_ids, completion_ids = self.replay[len(getattr(self, "recorded", []))]
        assert prompt_ids == expected_prompt_ids
        return [list(ids) for ids in completion_ids], None


def train_kept_rows(model_path, output_dir, **arguments) -> tuple[dict[str, torch.Tensor], list]:
    """Train with n > m; returns the parameters and the kept rows."""
    trainer = make_trainer(RecordingPODS, model_path, output_dir, num_rollouts=12, **UPDATE | arguments)
    return train(trainer), trainer.recorded


def assert_same_update(model_path, tmp_path, rule="max_variance", **arguments) -> dict[str, torch.Tensor]:
    """
    Train with n > m, then plain GRPO on the very rows that were kept: the same parameters, but for rounding.

    Returns those parameters.
    """
    found, kept = train_kept_rows(model_path, tmp_path / "pods", down_sampling=rule, **arguments)
    grpo = make_trainer(ReplayingGRPO, model_path, tmp_path / "grpo", **UPDATE | arguments)
    grpo.replay = kept
    expected = train(grpo)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-7, msg=name)
    return found


@pytest.mark.feature("every `loss_type`")
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("rule", ["max_variance", "random"])
def test_case_11_n_greater_m_updates_as_grpo_does_on_the_kept_rows(loss_type, rule, model_path, tmp_path):
    assert_same_update(model_path, tmp_path, rule, loss_type=loss_type)


# Options of the update, and what else each needs to change it.
OPTIONS = [
    ({"importance_sampling_level": "sequence"}, {}),
    ({"delta": 1.01}, {}),
    ({"top_entropy_quantile": 0.5}, {}),
    ({"entropy_coef": 0.01}, {}),
    ({"use_adaptive_entropy": True}, {"entropy_target": 10.0}),
    ({"sync_ref_model": True, "ref_model_sync_steps": 1}, {}),
    ({"use_bias_correction_kl": True}, {"use_bias_correction_kl": False}),
    ({"mask_truncated_completions": True}, {"max_completion_length": 24}),
    ({"scale_rewards": "batch"}, {}),
    ({"off_policy_mask_threshold": 1e-6}, {}),
    ({"cast_lm_head_to_fp32": True}, {"model_init_kwargs": {"dtype": "bfloat16"}, "learning_rate": 1e-2}),
    ({"chat_template_kwargs": {"think": True}}, {"conversational": True}),
    ({"router_aux_loss_coef": 0.5}, {}),  # with the model with experts
]


@pytest.fixture(scope="module")
def model_with_experts(tmp_path_factory) -> str:
    config = {"head_dim": 8, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
    return tiny.save_model(tmp_path_factory.mktemp("experts"), config_class=Qwen3MoeConfig, **config)


@pytest.fixture(params=OPTIONS, ids=lambda case: next(iter(case[0])))
def case(request, model_path, model_with_experts) -> tuple[dict, dict]:
    """The arguments of a training without an option, and with it."""
    option, others = request.param
    model = model_with_experts if "router_aux_loss_coef" in option else model_path
    return {"model_path": model} | others, {"model_path": model} | others | option


@pytest.mark.feature("`cast_lm_head_to_fp32`, `chat_template_kwargs`, `off_policy_mask_threshold`")
@pytest.mark.feature("`delta`, `entropy_coef`, `top_entropy_quantile`")
@pytest.mark.feature("`importance_sampling_level`, `sync_ref_model`, `use_bias_correction_kl`")
@pytest.mark.feature("`router_aux_loss_coef`, `use_adaptive_entropy`")
def test_options_of_the_update_do_as_in_grpo_on_the_kept_rows(case, tmp_path):
    without, with_option = case
    found = assert_same_update(tmp_path=tmp_path, **with_option)
    others, _ = train_kept_rows(output_dir=tmp_path / "without", **without)
    assert differ(found, others), "the option changes nothing, so nothing was tested"


def test_options_of_the_update_with_n_equal_m_are_grpo_bit_for_bit(case, tmp_path):
    without, with_option = (arguments | {"beta": 0.1, "num_iterations": 2} for arguments in case)
    found = assert_same_bits(tmp_path=tmp_path, **with_option)
    others = train_grpo(output_dir=tmp_path / "without", **without)
    assert differ(found, others), "the option changes nothing, so nothing was tested"


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


def test_case_66_forward_passes_see_the_kept_rows_only(model_path, tmp_path):
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
