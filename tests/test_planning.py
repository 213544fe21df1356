"""Planning: the cost model, the pass rates and the learning signal, against what is known exactly."""

import itertools
import math

import numpy as np
import pytest
import torch

from trl_pods import get_strategy
from trl_pods.planning import rank_correlation
from trl_pods.planning.cost import CostModel, Timing, fit_cost, nonnegative_line
from trl_pods.planning.pass_rates import (
    BetaPassRates,
    SeenRewards,
    fit_pass_rates,
    pass_rates_of_log,
    share_alike,
)
from trl_pods.planning.signal import kept_signal, signals

# Seconds per step by n at m = 16, one L40S (released runs of PODS, arXiv 2504.13818).
L40S = {16: 7.56, 32: 7.95, 64: 10.12, 128: 13.78, 256: 21.37}


def timings(cost, pairs):
    a, b, c, d = cost.per_batch_sampled, cost.per_rollout, cost.per_batch_trained, cost.per_kept
    return [Timing(n, m, a + b * n, cost.selecting, c + d * m) for n, m in pairs]


@pytest.mark.parametrize("numbers", [(0.5, 0.02, 0.3, 0.05), (0, 0.02, 0, 0.05), (3, 0, 2, 0), (3, 0.01, 0, 0)])
def test_the_cost_that_made_the_times_is_found(numbers):
    cost = CostModel(*numbers, selecting=0.1)
    found = fit_cost(timings(cost, [(8, 2), (64, 2), (64, 16)]))
    assert vars(found) == pytest.approx(vars(cost), abs=1e-9)
    assert found.largest_error(timings(cost, [(8, 2), (128, 16)])) < 1e-9


def test_no_part_of_the_cost_is_negative():
    intercept, slope = nonnegative_line([8, 16, 32], [1.0, 3.0, 9.0])  # grows faster than a line through 0
    assert intercept == 0 and slope > 0
    intercept, slope = nonnegative_line([8, 16, 32], [3.0, 2.0, 1.0])  # falls
    assert intercept > 0 and slope == 0
    assert nonnegative_line([8, 16], [0.0, 0.0]) == (0, 0)


def test_one_run_tells_no_fixed_part():
    assert vars(fit_cost([Timing(32, 8, 4.0, 0.1, 2.0)])) == vars(CostModel(0, 0.125, 0, 0.25, 0.1))


def test_published_times_of_one_gpu_are_linear_in_the_rollouts():
    intercept, slope = nonnegative_line(list(L40S), list(L40S.values()))
    errors = [abs((intercept + slope * n) / seconds - 1) for n, seconds in L40S.items()]
    assert max(errors) < 0.06
    # Two of them predict the others as well, which is what short runs at the ends of the grid are for.
    intercept, slope = nonnegative_line([16, 256], [L40S[16], L40S[256]])
    assert max(abs((intercept + slope * n) / seconds - 1) for n, seconds in L40S.items()) < 0.11


@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 1.2), (2.0, 2.0), (0.5, 0.2), (5.0, 45.0)])
def test_the_pass_rates_that_made_the_counts_are_found(alpha, beta):
    random = np.random.default_rng(0)
    sampled = random.choice([8, 32], size=6000)
    right = random.binomial(sampled, random.beta(alpha, beta, size=6000))
    found = fit_pass_rates(torch.from_numpy(right), torch.from_numpy(sampled))
    assert (found.alpha, found.beta) == pytest.approx((alpha, beta), rel=0.1)


def test_no_other_pass_rates_make_the_counts_likelier():
    right, sampled = torch.tensor([0, 0, 1, 3, 4]).double(), torch.full((5,), 4).double()

    def likelihood(alpha, beta):
        alpha, beta = torch.tensor(alpha).double(), torch.tensor(beta).double()
        log_beta = torch.special.gammaln
        top = log_beta(right + alpha) + log_beta(sampled - right + beta) - log_beta(sampled + alpha + beta)
        return (top - log_beta(alpha) - log_beta(beta) + log_beta(alpha + beta)).sum().item()

    found = fit_pass_rates(right, sampled)
    best = likelihood(found.alpha, found.beta)
    for x, y in itertools.product((0.97, 1.0, 1.03), repeat=2):
        assert likelihood(found.alpha * x, found.beta * y) <= best + 1e-6


@pytest.mark.parametrize("right", [[0, 0, 8, 8], [4, 4, 4, 4], [0, 0, 0, 1]])
def test_extreme_counts_give_pass_rates_that_can_be_drawn(right):
    found = fit_pass_rates(torch.tensor(right), torch.full((4,), 8))
    assert found.mean == pytest.approx(sum(right) / 32, abs=0.01)
    assert set(found.draw(100, 8, seed=0).unique().tolist()) <= {0.0, 1.0}


def test_pass_rates_are_found_from_means_and_shares_alone():
    true = BetaPassRates(0.4, 1.1)
    found = pass_rates_of_log([true.mean] * 2, [share_alike(true, n) for n in (8, 64)], [8, 64])
    assert (found.alpha, found.beta) == pytest.approx((0.4, 1.1), rel=1e-6)


def test_drawn_rewards_have_the_moments_of_their_distribution():
    pass_rates = BetaPassRates(0.4, 1.1)
    drawn = pass_rates.draw(20000, 8, seed=0)
    assert drawn.mean().item() == pytest.approx(pass_rates.mean, abs=0.01)
    assert (drawn.std(dim=1) == 0).float().mean().item() == pytest.approx(share_alike(pass_rates, 8), abs=0.01)


def test_seen_rewards_are_drawn_within_a_prompt():
    drawn = SeenRewards([torch.tensor([0.0, 1.0]), torch.tensor([5.0, 6.0, 7.0])]).draw(4000, 16, seed=0)
    first = drawn.max(dim=1).values <= 1
    assert first.float().mean().item() == pytest.approx(0.5, abs=0.03)
    assert drawn[first].mean().item() == pytest.approx(0.5, abs=0.02)
    assert set(drawn[~first].unique().tolist()) == {5.0, 6.0, 7.0}


def test_an_unscored_rollout_adds_no_signal():
    assert kept_signal(torch.tensor([[0.0, 1.0, math.nan], [math.nan] * 3])).tolist() == [0.5, 0.0]


def best_signal(rewards, num_kept):
    return max(num_kept * np.var(kept) for kept in itertools.combinations(rewards, num_kept))


@pytest.mark.parametrize("pair", [(3, 2), (6, 2), (6, 4), (6, 6), (7, 3)])
def test_the_signal_is_that_of_all_outcomes_and_all_choices(pair):
    n, m = pair
    pass_rates = BetaPassRates(0.6, 1.5)
    right = [sum(rewards) for rewards in itertools.product((0, 1), repeat=n)]
    # Probability of one order of k right: E[p^k (1 - p)^(n - k)], here from moments of the Beta by quadrature.
    p = (np.arange(200000) + 0.5) / 200000
    density = p ** (pass_rates.alpha - 1) * (1 - p) ** (pass_rates.beta - 1)
    chance = {k: np.average(p**k * (1 - p) ** (n - k), weights=density) for k in range(n + 1)}
    signal_of = {k: best_signal([1.0] * k + [0.0] * (n - k), m) for k in range(n + 1)}
    exact = sum(chance[k] * signal_of[k] for k in right)
    simulated = signals(pass_rates, "max_variance", get_strategy("max_variance"), [pair], num_prompts=40000)[pair]
    assert simulated == pytest.approx(exact, rel=0.02)


def test_the_signal_is_the_squared_signal_to_noise_ratio_of_the_gradient():
    """Scores of mean u + g r and unit noise: the ratio of what the advantages estimate is g^2 m Var."""
    random, g, rewards = np.random.default_rng(0), 0.7, np.array([1.0, 0.0, 0.0, 0.0, 1.0, 0.5])
    scores = 3.0 + g * rewards + random.standard_normal((200000, 6))
    gradient = scores @ ((rewards - rewards.mean()) / rewards.std())
    ratio = gradient.mean() ** 2 / gradient.var()
    assert ratio == pytest.approx(g**2 * kept_signal(torch.tensor(rewards)[None]).item(), rel=0.02)


def test_more_rollouts_never_weaken_max_variance():
    pairs = [(n, 4) for n in (4, 8, 16, 64)]
    found = signals(BetaPassRates(0.2, 2.0), "max_variance", get_strategy("max_variance"), pairs)
    assert list(found.values()) == sorted(found.values())
    assert found[64, 4] < 1.0  # 4 * 1/4, if all prompts had two right and two wrong


def test_rank_correlation():
    pairs = [(8, 2), (16, 2), (32, 2), (64, 2)]
    up, down = dict(zip(pairs, (1, 2, 3, 4))), dict(zip(pairs, (9, 7, 5, 1)))
    assert rank_correlation(up, up | {(1, 1): 0}) == 1
    assert rank_correlation(up, down) == -1
    ties = dict(zip(pairs, (1, 1, 2, 3)))  # ranks 1.5, 1.5, 3, 4
    assert rank_correlation(up, ties) == pytest.approx(4.5 / math.sqrt(5 * 4.5))
    assert math.isnan(rank_correlation(up, dict.fromkeys(pairs, 1)))
    with pytest.raises(ValueError, match="three or more"):
        rank_correlation(up, {(8, 2): 1.0})
