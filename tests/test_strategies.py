"""The built-in rules against brute force over all subsets, and the policy that they share."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_pods import get_strategy, list_strategies
from trl_pods.selection import seeded_generator, select
from trl_pods.strategies import max_reward, max_variance, percentile, random

RULES = list(list_strategies())


def apply(rule: str, rewards: torch.Tensor, num_kept: int, seed: int = 0) -> torch.Tensor:
    context = {
        "rewards_per_func": rewards.unsqueeze(-1),
        "completion_lengths": torch.ones_like(rewards, dtype=torch.long),
        "truncated": torch.zeros_like(rewards, dtype=torch.bool),
        "generator": seeded_generator(seed),
        "step": 0,
    }
    return select(rule, get_strategy(rule), rewards, num_kept, kwargs={}, context=context)


def variance(values: torch.Tensor) -> float:
    values = values.double()
    return (values - values.mean()).square().mean().item()


def best_variance(rewards: torch.Tensor, num_kept: int) -> float:
    scored = rewards[rewards.isfinite()]
    return max(variance(scored[list(subset)]) for subset in itertools.combinations(range(len(scored)), num_kept))


REWARDS = st.one_of(
    st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=10),
    st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=10),
    st.lists(st.sampled_from([-1.0, 0.0, 0.5, 0.5, 1.0, float("nan")]), min_size=2, max_size=10),
    st.lists(st.integers(0, 64).map(lambda i: 1e6 + i / 16), min_size=2, max_size=10),
    st.lists(st.sampled_from([-float("inf"), float("inf"), float("nan"), 0.0, 1.0, 3.0]), min_size=2, max_size=10),
)


@settings(max_examples=400, deadline=None)
@given(values=REWARDS, data=st.data(), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_max_variance_is_optimal(values, data, dtype):
    rewards = torch.tensor(values, dtype=dtype)
    num_kept = data.draw(st.integers(2, len(values)))
    kept = apply("max_variance", rewards.unsqueeze(0), num_kept)[0]
    num_scored = int(rewards.isfinite().sum())
    if num_scored < num_kept:
        assert set(rewards.isfinite().nonzero().flatten().tolist()) <= set(kept.tolist())
    else:
        found, best = variance(rewards[kept]), best_variance(rewards, num_kept)
        assert found == pytest.approx(best, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("rewards", "num_kept", "expected"),
    [
        ([0, 0, 0, 0, 0, 0, 0, 1], 4, 0.1875),  # another implementation keeps variance 0 here
        ([1, 0] * 64, 32, 0.25),  # where the authors' code freezes at 0.03
        ([1e6 + 0.0625, 1e6, 1e6 + 1, 1e6 + 0.5], 2, 0.25),
        ([-3.0, -1.0, -1.0, -1.0], 2, 1.0),
    ],
)
def test_max_variance_reaches_the_known_optimum(rewards, num_kept, expected):
    kept = max_variance(torch.tensor([rewards], dtype=torch.float32), num_kept)[0]
    assert variance(torch.tensor(rewards)[kept]) == pytest.approx(expected)


def test_max_variance_keeps_half_of_each_where_they_exist():
    rewards = (torch.rand(50, 64, generator=seeded_generator(1)) < 0.5).float()
    assert (rewards.gather(1, max_variance(rewards, 16)).sum(dim=1) == 8).all()


def test_max_variance_prefers_more_of_the_best_between_equal_splits():
    assert max_variance(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), 3).sort().values.tolist() == [[0, 2, 3]]


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60, deadline=None)
@given(values=REWARDS, data=st.data())
def test_unscored_rollouts_are_kept_last_and_earliest_first(rule, values, data):
    rewards = torch.tensor(values)
    num_kept = data.draw(st.integers(2, len(values)))
    kept = set(apply(rule, rewards.unsqueeze(0), num_kept)[0].tolist())
    scored = set(rewards.isfinite().nonzero().flatten().tolist())
    unscored = [i for i in range(len(values)) if i not in scored]
    assert kept - scored == set(unscored[: max(0, num_kept - len(scored))])


@pytest.mark.parametrize("rule", ["max_variance", "max_reward", "percentile"])
@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=40), data=st.data())
def test_among_equal_rewards_the_earliest_are_kept(rule, values, data):
    num_kept = data.draw(st.integers(2, len(values)))
    kept = apply(rule, torch.tensor([values]), num_kept)[0].tolist()
    for value in set(values):
        places = [i for i, other in enumerate(values) if other == value]
        chosen = [i for i in kept if values[i] == value]
        assert chosen == places[: len(chosen)]


@pytest.mark.parametrize("rule", RULES)
def test_all_equal_rewards_give_the_first_rollouts_or_a_draw(rule):
    kept = apply(rule, torch.ones(2, 64), 16)
    if rule == "random":
        assert kept.tolist() != [list(range(16))] * 2
    else:
        assert kept.tolist() == [list(range(16))] * 2


@pytest.mark.parametrize("rule", RULES)
def test_same_input_same_indices_and_m_equal_n_keeps_all(rule):
    rewards = torch.randn(8, 32, generator=seeded_generator(2))
    assert apply(rule, rewards, 8).equal(apply(rule, rewards.clone(), 8))
    assert apply(rule, rewards, 32).tolist() == [list(range(32))] * 8


@pytest.mark.parametrize("rule", RULES)
def test_prompts_do_not_influence_each_other(rule):
    rewards = torch.randn(6, 24, generator=seeded_generator(3))
    if rule == "random":
        pytest.skip("draws for all prompts at once")
    together = apply(rule, rewards, 6)
    assert together.equal(torch.cat([apply(rule, row.unsqueeze(0), 6) for row in rewards]))


@pytest.mark.parametrize("rule", RULES)
def test_rules_leave_the_global_generator_and_their_input_alone(rule):
    rewards = torch.randn(4, 16)
    copy, state = rewards.clone(), torch.get_rng_state()
    apply(rule, rewards, 4)
    assert torch.get_rng_state().equal(state)
    assert rewards.equal(copy)


def test_max_reward_keeps_the_highest():
    assert max_reward(torch.tensor([[0.1, 3.0, float("nan"), 2.0, -1.0]]), 2).sort().values.tolist() == [[1, 3]]


def test_percentile_keeps_the_quantiles():
    # n = 8, m = 4: quantiles 1/8, 3/8, 5/8, 7/8 of the ascending order, so places 1, 3, 5 and 7 of it.
    rewards = torch.tensor([[7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]])
    assert rewards.gather(1, percentile(rewards, 4)).sort().values.tolist() == [[1.0, 3.0, 5.0, 7.0]]


def test_random_is_uniform_and_follows_its_generator():
    rewards = torch.zeros(4000, 8)
    kept = random(rewards, 2, generator=seeded_generator(5))
    counts = torch.bincount(kept.flatten(), minlength=8)
    assert (counts - 1000).abs().max() < 150  # five standard deviations
    assert kept.equal(random(rewards, 2, generator=seeded_generator(5)))
    assert not kept.equal(random(rewards, 2, generator=seeded_generator(6)))
