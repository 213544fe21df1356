"""`check_strategy` finds what it says it finds."""

import pytest
import torch

from trl_pods.strategies import max_reward, random
from trl_pods.testing import check_strategy


def keeps_the_first(rewards, num_kept):
    return torch.arange(num_kept).expand(len(rewards), -1)


def uses_the_global_generator(rewards, num_kept):
    torch.rand(1)
    return max_reward(rewards, num_kept)


def forgets(rewards, num_kept, *, _calls=[]):  # noqa: B006
    _calls.append(1)
    return max_reward(rewards if len(_calls) % 2 else -rewards, num_kept)


def looks_at_other_prompts(rewards, num_kept):
    better = rewards.nan_to_num(0).mean(dim=1, keepdim=True) > 0
    return max_reward(torch.where(better if len(rewards) > 1 else ~better, rewards, -rewards), num_kept)


def prefers_even_places(rewards, num_kept):
    even = torch.arange(rewards.size(1)) % 2 == 0
    return max_reward(torch.where(rewards.isfinite(), even.float(), torch.nan), num_kept)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (keeps_the_first, "without a score is kept"),
        (lambda rewards, num_kept: rewards.argsort(dim=1)[:, -num_kept:], "without a score is kept"),
        (uses_the_global_generator, "global random generator"),
        (forgets, "other indices"),
        (looks_at_other_prompts, "depend on the other prompts"),
        (prefers_even_places, "order of the rollouts"),
    ],
)
def test_a_broken_rule_is_found(rule, message):
    with pytest.raises(AssertionError, match=message):
        check_strategy(rule)


def test_a_wrong_answer_is_named():
    def wrong(rewards, num_kept):
        return torch.zeros(len(rewards), num_kept, dtype=torch.long)

    with pytest.raises(ValueError, match=r"'wrong' .*must return .* distinct"):
        check_strategy(wrong)


def test_parameters_and_random_rules():
    def scaled(rewards, num_kept, *, sign):
        return max_reward(sign * rewards, num_kept)

    check_strategy(scaled, kwargs={"sign": -1})
    check_strategy(random)
    with pytest.raises(AssertionError, match="order of the rollouts"):
        check_strategy(random, equivariant=True)
    with pytest.raises(ValueError, match=r"\['size'\].*'scaled'"):
        check_strategy(scaled, kwargs={"sign": 1, "size": 2})


def test_what_the_trainer_may_hand_over_is_handed_over():
    def of_two_functions(rewards, num_kept, rewards_per_func):
        return max_reward(rewards_per_func[..., 1], num_kept)

    def divides(rewards, num_kept, step):
        return max_reward(rewards / step, num_kept) if 1 / step else None

    check_strategy(of_two_functions)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        check_strategy(divides)
