"""Sums, advantages and metrics against hand computation."""

import math

import pytest
import torch

from trl_pods.downsampling.metrics import (
    advantages_over_all,
    has_no_variance,
    reward_metrics,
    selection_metrics,
    variance_gain,
    weighted_sum,
)
from trl_pods.downsampling.selection import COUNTED, TRAINED, Selection

NAN = float("nan")


def test_weighted_sum_leaves_out_what_is_not_given():
    rewards = torch.tensor([[1.0, 2.0], [NAN, 2.0], [NAN, NAN]])
    total = weighted_sum(rewards, torch.tensor([1.0, -0.5]))
    assert total[:2].tolist() == [0.0, -1.0]
    assert total[2].isnan()


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1.0, 1.0, 1.0], True),
        ([1.0, 1.0 + 1e-7, 1.0], True),
        ([1e6, 1e6 + 0.0625, 1e6], True),
        ([1e6, 1e6 + 1, 1e6], False),
        ([0.0, 1e-6, 0.0], False),
        ([0.0, 0.0, 0.0], True),
        ([NAN, 1.0, 1.0], True),
        ([NAN, 1.0, 0.0], False),
        ([NAN, NAN, 1.0], True),
        ([NAN, NAN, NAN], True),
    ],
)
def test_variance_is_told_from_rounding_by_a_tolerance(rewards, expected):
    assert has_no_variance(torch.tensor([rewards])).tolist() == [expected]


def test_case_101_a_prompt_with_a_single_score_counts_as_in_trl():
    """Its score has no spread, so it is a 0 among the rewards that are normalised over the batch."""
    rewards = torch.tensor([[1, torch.nan, torch.nan], [0, 1, 2]]).unsqueeze(-1)
    found = advantages_over_all(rewards, torch.ones(1), scale_rewards="group", aggregation="normalize_then_sum")
    spread = 1.5**0.5  # of -1, 0, 1 and 0, whose standard deviation is (2 / 3) ** 0.5
    assert found.tolist() == [[0, 0, 0], pytest.approx([-spread, 0, spread], abs=1e-3)]


def test_advantages_over_all_by_hand():
    rewards = torch.tensor([[0.0, 1.0, 1.0, NAN], [2.0, 4.0, 6.0, 8.0]]).unsqueeze(-1)
    one = torch.ones(1)
    group = advantages_over_all(rewards, one, scale_rewards="group", aggregation="sum_then_normalize")
    std = math.sqrt(1 / 3)  # of 0, 1, 1
    assert group[0].tolist() == pytest.approx([(v - 2 / 3) / (std + 1e-4) for v in (0, 1, 1)] + [0.0], rel=1e-5)
    assert group[1].tolist() == pytest.approx([v / (math.sqrt(20 / 3) + 1e-4) for v in (-3, -1, 1, 3)], rel=1e-5)
    none = advantages_over_all(rewards, one, scale_rewards="none", aggregation="sum_then_normalize")
    assert none[1].tolist() == [-3.0, -1.0, 1.0, 3.0]
    batch = advantages_over_all(rewards, one, scale_rewards="batch", aggregation="sum_then_normalize")
    all_std = torch.tensor([0.0, 1.0, 1.0, 2.0, 4.0, 6.0, 8.0]).std().item()
    assert batch[1].tolist() == pytest.approx([v / (all_std + 1e-4) for v in (-3, -1, 1, 3)], rel=1e-5)


def test_metrics_by_hand():
    rewards = torch.tensor([[0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    kept, lengths = torch.tensor([[0, 3], [0, 1]]), torch.tensor([[1, 2, 3, 4], [5, 5, 5, 5]])
    roles = torch.tensor([TRAINED, COUNTED])
    selection = Selection([], [], None, rewards.unsqueeze(-1), lengths, lengths, kept, roles)
    assert selection_metrics(selection, torch.ones(1)) == pytest.approx(
        {
            "pods/trained_rows": 2,
            "pods/frac_prompts_trained": 1 / 2,
            "pods/kept_reward": 3 / 4,
            "pods/kept_reward_std": torch.tensor([0.0, 1.0, 1.0, 1.0]).std().item(),
            "pods/dropped_reward": 2 / 4,
            "pods/kept_frac_zero_std": 1 / 2,
            "pods/variance_gain": (0.25 + 0) / (3 / 16 + 0),
            "pods/kept_token_fraction": (1 + 4 + 5 + 5) / 30,
        }
    )
    per_func = torch.stack([rewards, torch.tensor([[NAN] * 4, [2.0, 4.0, NAN, NAN]])], dim=-1)
    assert reward_metrics(per_func, torch.tensor([1.0, 0.5]), ["a", "b"]) == pytest.approx(
        {
            "reward": (0 + 0 + 0 + 1 + 2 + 3 + 1 + 1) / 8,
            "reward_std": torch.tensor([0.0, 0, 0, 1, 2, 3, 1, 1]).std().item(),
            "frac_reward_zero_std": 0.0,
            "rewards/a/mean": 5 / 8,
            "rewards/a/std": rewards.std().item(),
            "rewards/b/mean": 3.0,
            "rewards/b/std": math.sqrt(2),
        }
    )


def test_variance_gain_is_one_where_there_is_nothing_to_gain():
    assert variance_gain(torch.ones(2, 8), torch.tensor([[0, 1], [2, 3]])) == 1.0
    assert variance_gain(torch.full((1, 4), NAN), torch.tensor([[0, 1]])) == 1.0
