"""
A trainer that records the rows it trains, and a reward function that each of them can be checked against.

The reward depends on everything that the judge sees of a row, so a trained row whose prompt, column, completion or
advantage came from another rollout does not get the advantage that [`assert_aligned`] computes for it.
"""

import itertools
import re
import zlib

import tiny
import tiny_tools
import torch

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer


def score(*values) -> float:
    """A number in [0, 1) that is another one for almost every other row."""
    return zlib.crc32(repr(values).encode()) % 9973 / 9973


def number_in(prompt) -> int:
    """The number that a prompt of the tiny dataset asks for, from text or from messages."""
    return int(re.search(r"answer (\d+)", str(prompt)).group(1))


class Judge:
    """A reward function that needs the column `target`, which equals the number in the prompt, and records its rows."""

    __name__ = "judge"

    def __init__(self):
        self.calls: list[dict[tuple, float]] = []  # for each call, the rewards by number and completion
        self.num_rows: list[int] = []

    def __call__(self, prompts, completions, completion_ids, target, **kwargs) -> list[float]:
        rows = [(number_in(prompt), tuple(ids)) for prompt, ids in zip(prompts, completion_ids, strict=True)]
        rewards = [score(number, t, ids) for (number, ids), t in zip(rows, target, strict=True)]
        self.calls.append(dict(zip(rows, rewards, strict=True)))
        self.num_rows.append(len(rows))
        return rewards


class RecordingTrainer(PODSGRPOTrainer):
    """Records the inputs and the value of each loss."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.trained: list[dict] = []
        self.evaluated: list[dict] = []
        self.losses: list[float] = []

    def _compute_loss(self, model, inputs):
        (self.trained if self.model.training else self.evaluated).append(dict(inputs))
        loss = super()._compute_loss(model, inputs)
        self.losses.append(loss.item())
        return loss

    def rows(self, inputs: dict) -> list[dict]:
        """The rows of a batch: number in the prompt, completion and advantage."""
        pad = self._tokenizer.pad_token_id
        prompts = [ids[mask.bool()] for ids, mask in zip(inputs["prompt_ids"], inputs["prompt_mask"], strict=True)]
        prompts = [self._tokenizer.decode(ids) for ids in prompts]
        return [
            {
                "text": prompts[i],
                "number": number_in(prompts[i]),
                "completion": _unpadded(inputs["completion_ids"][i], inputs["completion_mask"][i], pad),
                "advantage": advantage,
            }
            for i, advantage in enumerate(inputs["advantages"].tolist())
        ]

    def logged(self, key: str) -> list[float]:
        return [entry[key] for entry in self.state.log_history if key in entry]


def make_trainer(model, reward_funcs, output_dir, **arguments) -> RecordingTrainer:
    """A trainer that samples 8 rollouts of each of 2 prompts and keeps 4."""
    names = ("train_dataset", "eval_dataset", "processing_class", "reward_processing_classes", "peft_config")
    names += ("tools", "rollout_func", "environment_factory")
    others = {"train_dataset": tiny.make_dataset(), "processing_class": tiny.make_tokenizer()}
    others |= {name: arguments.pop(name) for name in names if name in arguments}
    return RecordingTrainer(
        model=model,
        reward_funcs=reward_funcs,
        args=PODSGRPOConfig(**tiny.default_arguments(output_dir, **{"num_rollouts": 8} | arguments)),
        **others,
    )


def _unpadded(ids: torch.Tensor, mask: torch.Tensor, pad: int) -> tuple[int, ...]:
    """A completion without padding. Only one that is masked as truncated cannot end with a sampled padding token."""
    length = mask.sum() if mask.any() else (ids != pad).nonzero().max() + 1
    return tuple(ids[:length].tolist())


def train_with_tools(model, reward_funcs, output_dir, *, tool: str, **arguments) -> RecordingTrainer:
    """Train a model of `tiny_tools`, whose rollouts have up to two calls of the tool."""
    trainer = make_trainer(
        model,
        reward_funcs,
        output_dir,
        **{"train_dataset": tiny.make_dataset(conversational=True)} | arguments,
        processing_class=tiny_tools.make_tokenizer(tool),
        max_completion_length=48,
        max_tool_calling_iterations=2,
    )
    trainer.train()
    return trainer


def expected_score(row: dict) -> float:
    """The judge's reward of a trained row, if every value came from the same rollout."""
    return score(row["number"], row["number"], row["completion"])


def normalized(rewards: torch.Tensor) -> torch.Tensor:
    return (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std(dim=1, keepdim=True) + 1e-4)


def groups_of(rows: list[dict]) -> list[list[dict]]:
    """The rows of each prompt, which must all be groups of 4."""
    rows = sorted(rows, key=lambda row: row["number"])
    groups = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row["number"])]
    assert {len(group) for group in groups} == {4}
    return groups


def assert_advantages(groups: list[list[dict]], rewards: torch.Tensor, advantages_of=normalized) -> None:
    advantages = torch.tensor([[row["advantage"] for row in group] for group in groups])
    torch.testing.assert_close(advantages, advantages_of(rewards), rtol=1e-4, atol=1e-4)
    assert advantages.abs().max() > 0.1, "no learning signal, so nothing was checked"


def assert_aligned(trainer, judge=None, *, reward_of=expected_score, advantages_of=normalized) -> None:
    """
    Check that every trained row has the advantage that its own prompt and completion earn.

    With the `judge` that saw all rollouts, check also that the kept rewards have the largest variance.
    """
    assert len(trainer.trained) == trainer.state.global_step > 0
    for step, inputs in enumerate(trainer.trained):
        groups = groups_of(trainer.rows(inputs))
        rewards = torch.tensor([[reward_of(row) for row in group] for group in groups])
        assert_advantages(groups, rewards, advantages_of)
        if judge is not None:
            rows = [{"number": number, "completion": completion} for number, completion in judge.calls[step]]
            for group, kept in zip(groups, rewards, strict=True):
                sampled = [reward_of(row) for row in rows if row["number"] == group[0]["number"]]
                assert len(sampled) == 8, "two rollouts are equal; take longer completions"
                subsets = torch.tensor(list(itertools.combinations(sampled, len(kept))))
                torch.testing.assert_close(kept.var(), subsets.var(dim=1).max())
