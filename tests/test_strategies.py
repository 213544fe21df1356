"""The built-in rules against brute force over all subsets, and the policy that they share."""

import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trl_pods import get_strategy, list_strategies
from trl_pods.downsampling.selection import seeded_generator, select
from trl_pods.strategies import balanced, max_reward, max_variance, percentile, random
from trl_pods.testing import check_strategy

RULES = list(list_strategies())


def apply(rule: str, rewards: torch.Tensor, num_kept: int, lengths: torch.Tensor | None = None) -> torch.Tensor:
    context = {
        "rewards_per_func": rewards.unsqueeze(-1),
        "completion_lengths": torch.ones_like(rewards, dtype=torch.long) if lengths is None else lengths,
        "truncated": torch.zeros_like(rewards, dtype=torch.bool),
        "generator": seeded_generator(0),
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
    st.lists(st.integers(0, 64).map(lambda i: 1e8 + 8 * i), min_size=2, max_size=10),
    st.lists(st.integers(-9, 9).map(lambda i: i * 1e-40), min_size=2, max_size=10),  # denormal in float32
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
        assert best * (1 - 2.4e-7) <= found <= best * (1 + 1e-9)  # within two roundings of float32


@settings(max_examples=200, deadline=None)
@given(values=REWARDS, data=st.data())
def test_max_abs_advantage_keeps_the_largest(values, data):
    rewards = torch.tensor(values)
    num_kept = data.draw(st.integers(2, len(values)))
    kept = apply("max_abs_advantage", rewards.unsqueeze(0), num_kept)[0]
    scored = rewards.isfinite()
    dropped = scored.clone()
    dropped[kept] = False
    if dropped.any():
        distance = (rewards.double() - rewards[scored].double().mean()).abs()
        assert distance[kept].min() >= distance[dropped].max() * (1 - 1e-6)


@settings(max_examples=200, deadline=None)
@given(values=REWARDS, data=st.data())
def test_balanced_keeps_as_many_of_the_best_as_of_the_worst(values, data):
    rewards = torch.tensor(values)
    num_scored = int(rewards.isfinite().sum())
    assume(num_scored >= 2)
    num_kept = data.draw(st.integers(2, num_scored))
    kept = rewards[balanced(rewards.unsqueeze(0), num_kept)[0]].sort().values
    ordered = rewards[rewards.isfinite()].sort().values
    assert kept.equal(torch.cat([ordered[: num_kept // 2], ordered[num_scored - (num_kept + 1) // 2 :]]))


def exact_variance(values: torch.Tensor) -> Fraction:
    fractions = [Fraction(value) for value in values.double().tolist()]
    return len(fractions) * sum(f * f for f in fractions) - sum(fractions) ** 2


LENGTHS = st.lists(st.integers(0, 6), min_size=10, max_size=10)


@settings(max_examples=400, deadline=None)
@given(values=REWARDS, lengths=LENGTHS, data=st.data())
def test_length_aware_max_variance_is_optimal_and_cheapest(values, lengths, data):
    rewards, tokens = torch.tensor(values), torch.tensor(lengths[: len(values)])
    scored = rewards.isfinite().nonzero().flatten()
    assume(len(scored) >= 2)
    num_kept = data.draw(st.integers(2, len(scored)))
    kept = apply("length_aware_max_variance", rewards.unsqueeze(0), num_kept, tokens.unsqueeze(0))[0]
    best = best_variance(rewards, num_kept)
    assert variance(rewards[kept]) >= best * (1 - 2.4e-7)
    subsets = [list(subset) for subset in itertools.combinations(scored.tolist(), num_kept)]
    exact = [exact_variance(rewards[subset]) for subset in subsets]
    as_good = [subset for subset, value in zip(subsets, exact) if value == max(exact)]
    assert tokens[kept].sum() <= min(tokens[subset].sum() for subset in as_good)


@settings(max_examples=100, deadline=None)
@given(values=REWARDS, lengths=LENGTHS, data=st.data())
def test_shortest_and_reward_per_token_keep_the_first_by_their_key(values, lengths, data):
    rewards, tokens = torch.tensor(values), torch.tensor(lengths[: len(values)])
    num_kept = data.draw(st.integers(2, len(values)))
    keys = {"shortest": -tokens.double(), "reward_per_token": rewards.double() / tokens.clamp(min=1)}
    for rule, key in keys.items():
        by_key = sorted(
            range(len(values)), key=lambda i: (not rewards[i].isfinite(), -key[i] if rewards[i].isfinite() else 0, i)
        )
        kept = apply(rule, rewards.unsqueeze(0), num_kept, tokens.unsqueeze(0))[0]
        assert kept.tolist() == sorted(by_key[:num_kept])


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


@pytest.mark.parametrize("rule", ["max_variance", "length_aware_max_variance"])
@pytest.mark.parametrize("levels", [(0, 1), (0.1, 0.9), (0, 0.1), (0.2, 1.2), (-0.3, 1e3)])
def test_between_equal_splits_more_of_the_best_are_kept_whatever_the_rewards_are_called(rule, levels):
    for num_rollouts in (6, 16, 64):
        for num_kept in range(3, num_rollouts // 2, 2):
            rewards = torch.tensor([levels] * (num_rollouts // 2)).flatten().unsqueeze(0).float()
            kept = rewards[0][apply(rule, rewards, num_kept)[0]]
            assert (kept == rewards.max()).sum() == num_kept // 2 + 1


def test_max_variance_prefers_more_of_the_best_between_equal_splits():
    assert max_variance(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), 3).sort().values.tolist() == [[0, 2, 3]]
    for step in (1.0, 3.0, 0.1):
        assert max_variance(step * torch.tensor([[0.0, 1.0, 2.0, 3.0]]), 3).sort().values.tolist() == [[0, 2, 3]]


def test_length_aware_max_variance_sees_through_rounding():
    rewards, lengths = torch.tensor([[0.7, 0.3, 0.2, 0.8, 0.7]]), torch.tensor([[1, 4, 5, 3, 2]])
    assert apply("length_aware_max_variance", rewards, 3, lengths).tolist() == [[0, 2, 3]]
    assert apply("length_aware_max_variance", rewards.double(), 3, lengths).tolist() == [[0, 2, 3]]


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


@pytest.mark.parametrize("rule", sorted({*RULES} - {"random"}))
@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=40), data=st.data())
def test_among_equal_rewards_the_earliest_are_kept(rule, values, data):
    num_kept = data.draw(st.integers(2, len(values)))
    kept = apply(rule, torch.tensor([values]), num_kept)[0].tolist()
    for value in set(values):
        places = [i for i, other in enumerate(values) if other == value]
        chosen = [i for i in kept if values[i] == value]
        assert chosen == places[: len(chosen)]


@pytest.mark.parametrize("rule", RULES)
def test_case_41_all_equal_rewards_give_the_first_rollouts_or_a_draw(rule):
    kept = apply(rule, torch.ones(2, 64), 16)
    if rule == "random":
        assert kept.tolist() != [list(range(16))] * 2
    else:
        assert kept.tolist() == [list(range(16))] * 2


@pytest.mark.parametrize("rule", RULES)
def test_rules_keep_the_contract(rule):
    """The very function that a third party runs on its own rule."""
    check_strategy(rule)


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rule", RULES)
def test_rules_give_the_same_on_a_gpu(rule):
    rewards = torch.randn(16, 64, generator=seeded_generator(4)).masked_fill(torch.rand(16, 64) < 0.1, float("nan"))
    on_gpu = apply(rule, rewards.cuda(), 16, torch.ones(16, 64, dtype=torch.long, device="cuda"))
    assert on_gpu.is_cuda
    assert on_gpu.cpu().equal(apply(rule, rewards, 16))
