"""Random batch settings: each trains with what must hold, or is refused with values that are then accepted."""

import re
from pathlib import Path

import pytest
import recording
import tiny
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from trl_pods import PODSGRPOConfig
from trl_pods.checks.batch_sizes import sampled_prompts


class Judge(recording.Judge):
    """A judge that gives equal rewards to the rollouts of some prompts."""

    def __init__(self, share_of_equal: float):
        super().__init__()
        self.share_of_equal = share_of_equal

    def __call__(self, target, **kwargs) -> list[float]:
        rewards = super().__call__(target=target, **kwargs)
        return [0.5 if recording.score(n) < self.share_of_equal else r for n, r in zip(target, rewards, strict=True)]


SETTINGS = st.fixed_dictionaries(
    {
        "per_device_train_batch_size": st.integers(1, 8),
        "gradient_accumulation_steps": st.integers(1, 3),
        "num_generations": st.integers(1, 6),
        "num_rollouts": st.none() | st.integers(0, 12),
        "num_iterations": st.integers(1, 2),
        "down_sampling": st.sampled_from(["max_variance", "max_reward", "random", "percentile", "shortest"]),
        "advantage_statistics": st.sampled_from(["kept", "all"]),
        "exclude_truncated": st.booleans(),
        "loss_type": st.sampled_from(["grpo", "dapo", "bnpo", "dr_grpo"]),
        "scale_rewards": st.sampled_from(["group", "batch", "none"]),
        "beta": st.sampled_from([0.0, 0.0, 0.1]),
        "zero_variance": st.sampled_from(["train", "skip", "drop"]),
        "prompt_oversampling": st.sampled_from([0.5, 1.0, 1.5, 2]),
        "share_of_equal": st.sampled_from([0.0, 0.5, 1.0]),  # prompts without variance
    },
    optional={"steps_per_generation": st.integers(1, 4), "generation_batch_size": st.integers(1, 24)},
)

# What a message says would do.
ADVICE = [
    (r"Set `num_generations` to one of \[(\d+)", lambda number: {"num_generations": number}),
    (r"`num_generations` is .* Set it to a whole number, (2) or more", lambda number: {"num_generations": number}),
    (
        r"`steps_per_generation` to a multiple of (\d+)",
        lambda number: {"steps_per_generation": number, "generation_batch_size": None},
    ),
    (r"`num_rollouts` is .* must be at least `num_generations` \((\d+)\)", lambda number: {"num_rollouts": number}),
    (r"`prompt_oversampling` is .* Use (2) to sample", lambda number: {"prompt_oversampling": number}),
    (r"`generation_batch_size` is .* Use a multiple of (\d+)", lambda number: {"generation_batch_size": number}),
]
TOO_MUCH = "'generation_batch_size' and 'steps_per_generation' can not be both configured"


def following_advice(options: dict) -> PODSGRPOConfig:
    """The configuration; where it is refused, the one that its messages lead to."""
    for refusals in range(6):  # as many as there can be mistakes, and the last
        try:
            config = PODSGRPOConfig(**options)
        except ValueError as error:
            message = str(error)
        else:
            event(f"refused {refusals} times")
            return config
        if TOO_MUCH in message:
            options = options | {"generation_batch_size": None}
        else:
            found = [(re.search(pattern, message), change) for pattern, change in ADVICE]
            match, change = next((pair for pair in found if pair[0]), (None, None))
            assert match, f"The message names no value that works: {message}"
            options = options | change(int(match[1]))
    pytest.fail(f"Messages lead nowhere: {options}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def check(options: dict, model_path: str, folder: Path) -> None:
    options = dict(options)
    judge = Judge(options.pop("share_of_equal"))
    config = following_advice(tiny.default_arguments(folder, max_completion_length=3) | options)
    num_prompts = sampled_prompts(config)
    trainer = recording.RecordingTrainer(
        model=model_path,
        reward_funcs=judge,
        args=config,
        train_dataset=tiny.make_dataset(2 * num_prompts * config.gradient_accumulation_steps),
        processing_class=tiny.make_tokenizer(),
    )
    trainer.train()
    assert trainer.state.global_step == 2
    rows = [len(inputs["prompt_ids"]) for inputs in trainer.trained]
    assert len(rows) == 2 * config.gradient_accumulation_steps
    assert set(rows) <= set(range(1, config.per_device_train_batch_size + 1))
    if config.zero_variance == "train" or (config.zero_variance == "skip" and config.beta):
        assert set(rows) == {config.per_device_train_batch_size}
    cycle = config.steps_per_generation * config.num_iterations
    assert judge.num_rows == [num_prompts * config.num_rollouts] * -(-len(trainer.trained) // cycle)
    for first in range(0, len(trainer.trained) - config.steps_per_generation + 1, cycle):
        batch = trainer.trained[first : first + config.steps_per_generation]
        numbers = [row["number"] for inputs in batch for row in trainer.rows(inputs)]
        assert {numbers.count(number) for number in numbers} == {config.num_generations}
    assert all(value.isfinite().all() for value in tiny.trained_parameters(trainer).values())


# Without looking for a smaller failure, which takes as many trainings again.
FUZZ = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])


@settings(FUZZ, max_examples=15, derandomize=True)
@given(SETTINGS)
def test_batch_settings_train_or_are_refused_with_values_that_work(model_path, folder, options):
    check(options, model_path, folder)


@pytest.mark.long
@settings(FUZZ, max_examples=150, derandomize=True)
@given(SETTINGS)
def test_many_batch_settings_train_or_are_refused_with_values_that_work(model_path, folder, options):
    check(options, model_path, folder)
