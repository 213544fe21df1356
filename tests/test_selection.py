"""What a strategy is given, and what becomes of a wrong answer."""

import pytest
import torch

from trl_pods.downsampling.selection import LEFT_OUT, TRAINED, Selection, check_strategy_kwargs, select

REWARDS = torch.zeros(2, 4)
CONTEXT = {
    "rewards_per_func": torch.zeros(2, 4, 1),
    "completion_lengths": torch.ones(2, 4, dtype=torch.long),
    "truncated": torch.zeros(2, 4, dtype=torch.bool),
    "generator": torch.Generator(),
    "step": 3,
}


def run(strategy, **kwargs):
    return select("mine", strategy, REWARDS, 2, kwargs=kwargs, context=CONTEXT)


def test_indices_come_back_ascending():
    assert run(lambda rewards, num_kept: torch.tensor([[3, 0], [1, 2]])).tolist() == [[0, 3], [1, 2]]


def test_indices_lie_row_by_row_in_memory_as_other_processes_read_them():
    assert run(lambda rewards, num_kept: torch.tensor([[0, 1], [2, 3]]).T).is_contiguous()


def test_a_strategy_gets_only_what_it_names_or_all():
    seen = {}

    def names_one(rewards, num_kept, step):
        seen["one"] = step
        return torch.tensor([[0, 1], [0, 1]])

    def takes_all(rewards, num_kept, *, alpha=1, **context):
        seen["all"] = (set(context), alpha)
        return torch.tensor([[0, 1], [0, 1]])

    run(names_one)
    run(takes_all, alpha=2)
    assert seen == {"one": 3, "all": (set(CONTEXT), 2)}


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.long), ValueError, r"'mine'.*\(2, 2\).*returned shape \(2, 3\)"),
        (torch.tensor([[0, 1]]), ValueError, r"returned shape \(1, 2\)"),
        (torch.tensor([[0.0, 1.0], [0.0, 1.0]]), ValueError, "'mine'.*torch.float32"),
        (torch.ones(2, 2, dtype=torch.bool), ValueError, "torch.bool"),
        ([[0, 1], [0, 1]], ValueError, "'mine'.*`list`"),
        (None, ValueError, "NoneType"),
        (torch.tensor([[0, 1], [2, 4]]), ValueError, "'mine'.*from 0 to 4.*from 0 to 3"),
        (torch.tensor([[0, -1], [2, 3]]), ValueError, "from -1 to 3"),
        (torch.tensor([[0, 1], [2, 2]]), ValueError, r"'mine'.*\[2, 2\] in row 1"),
    ],
)
def test_a_wrong_answer_is_refused_by_name(answer, error, message):
    with pytest.raises(error, match=message):
        run(lambda rewards, num_kept: answer)


def test_an_exception_names_the_strategy_and_keeps_its_cause():
    def broken(rewards, num_kept):
        raise KeyError("oops")

    with pytest.raises(RuntimeError, match=r"'mine' raised KeyError\('oops'\)") as raised:
        run(broken)
    assert isinstance(raised.value.__cause__, KeyError)


def test_parameters_are_checked_by_name():
    def rule(rewards, num_kept, generator, *, alpha, beta=0.5):
        return None

    check_strategy_kwargs("mine", rule, {"alpha": 1})
    check_strategy_kwargs("mine", lambda rewards, num_kept, **kwargs: None, {"anything": 1})
    with pytest.raises(ValueError, match=r"\['gamma'\].*'mine'.*\['alpha', 'beta'\]"):
        check_strategy_kwargs("mine", rule, {"alpha": 1, "gamma": 2})
    with pytest.raises(ValueError, match=r"\['generator'\]"):
        check_strategy_kwargs("mine", rule, {"alpha": 1, "generator": None})
    with pytest.raises(ValueError, match=r"'mine' needs \['alpha'\]"):
        check_strategy_kwargs("mine", rule, {})


@pytest.mark.parametrize("strategy", [lambda: None, lambda rewards: None, lambda *, rewards, num_kept: None])
def test_a_strategy_that_cannot_be_called_is_refused(strategy):
    with pytest.raises(ValueError, match=r"'mine' has the signature .*`\(rewards, num_kept\)`"):
        check_strategy_kwargs("mine", strategy, {})


def test_places_of_the_kept_rows():
    rewards, kept = torch.arange(12.0).view(3, 4, 1), torch.tensor([[0, 3], [1, 2], [0, 1]])
    lengths, roles = torch.ones(3, 4), torch.tensor([TRAINED, LEFT_OUT, TRAINED])
    selection = Selection([], [], None, rewards, lengths, lengths, kept, roles)
    assert selection.is_kept.nonzero().flatten().tolist() == [0, 3, 5, 6, 8, 9]
    assert selection.trained_rows.tolist() == [0, 3, 8, 9]
    assert selection.trained_rewards_per_func.tolist() == [[0.0], [3.0], [8.0], [9.0]]
