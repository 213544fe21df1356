"""
What of a generation batch goes on to the update: one decision for all processes, from the rewards of all.

Letters: Q prompts sampled per generation batch, P that the update counts, K that it computes; n rollouts sampled and m
kept per prompt, F reward functions.
"""

import logging
import math
from typing import Any

import torch
from accelerate.utils import broadcast

from ..checks.all_ranks import fail_together
from ..checks.trl_seam import Generated, Host
from ..strategies.registry import get_strategy
from .metrics import has_signal, variance, weighted_sum
from .selection import Selection, seeded_generator, select
from .zero_variance import roles, why_not_skipped

logger = logging.getLogger(__name__)


class RolloutSelection(Host):
    """Chooses rollouts by the strategy and prompts by their variance; overrides nothing."""

    num_rollouts: int  # n
    _num_prompts: int  # Q
    _num_counted: int  # P

    def __init__(self, *, args, **kwargs):
        self._strategy = get_strategy(args.down_sampling)
        self._selections_at = (-1, 0)  # optimizer step, and selections made at it
        self._infinite: set[str] = set()  # reward functions that gave an infinite reward
        super().__init__(args=args, **kwargs)
        self._selection_reward = _index_of(args.selection_reward, self.reward_func_names)
        self._stop_tokens = _stop_tokens(self.model.generation_config, self._tokenizer)
        behind = type(self).__mro__[type(self).__mro__.index(RolloutSelection) :]
        self._not_skipped = why_not_skipped(args, self, behind) if args.zero_variance == "skip" else None
        self._leaves_out = args.zero_variance != "train" and self._not_skipped is None

    def _select(self, prompts: list, generated: Generated, rewards_per_func: torch.Tensor) -> Selection:
        """Choose the rollouts to keep: on the main process, and for all."""
        shape = (self._num_prompts, self.num_rollouts)
        rewards_per_func = self._without_infinities(rewards_per_func.cpu()).view(*shape, -1)
        lengths, truncated = (column.view(shape) for column in self._gathered_lengths(generated).unbind(dim=1))
        context = {
            "rewards_per_func": rewards_per_func,
            "completion_lengths": lengths,
            "truncated": truncated.bool(),
            "generator": self._selection_generator(),
            "step": self.state.global_step,
        }
        decision = torch.empty(self._num_prompts, self.num_generations + 1, dtype=torch.long)
        with fail_together():
            if self.accelerator.is_main_process:
                kept = self._kept(context)
                decision = torch.cat([kept, self._roles(kept, context).unsqueeze(1)], dim=1)
        # One decides: another might see other floats, or have a strategy with a state or a random generator of its own.
        decision = broadcast(decision.to(self.accelerator.device)).cpu()
        kept = decision[:, :-1].contiguous()
        return Selection(
            prompts[:],
            generated.completions,
            generated.images,
            rewards_per_func,
            lengths,
            lengths.masked_fill(truncated.bool(), 0) if self.mask_truncated_completions else lengths,
            kept,
            decision[:, -1],
        )

    def _roles(self, kept: torch.Tensor, context: dict[str, Any]) -> torch.Tensor:
        """What becomes of each prompt, (Q,)."""
        rewards_per_func = context["rewards_per_func"]
        rewards = weighted_sum(rewards_per_func, self.reward_weights.cpu())
        has_signal = self._has_signal(rewards_per_func, kept)
        if self.mask_truncated_completions:
            has_signal &= ~context["truncated"].gather(1, kept).all(dim=1)
        return roles(
            variance(rewards.gather(1, kept)),
            has_signal,
            context["completion_lengths"].gather(1, kept).amax(dim=1),
            num_counted=self._num_counted,
            unit=self._prompts_at_once if self._leaves_out else None,
        )

    @property
    def _num_micro_batches(self) -> int:
        """Micro-batches of a generation batch, of all processes."""
        return self.accelerator.num_processes * self.args.steps_per_generation

    @property
    def _prompts_at_once(self) -> int:
        """The fewest prompts whose kept rows divide over the micro-batches."""
        return self._num_micro_batches // math.gcd(self._num_micro_batches, self.num_generations)

    def _has_signal(self, rewards_per_func: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        """Whether the rewards that give a prompt's advantages differ, (Q,)."""
        if self.args.advantage_statistics == "kept":
            rewards_per_func = rewards_per_func.take_along_dim(kept.unsqueeze(-1), dim=1)
        return has_signal(rewards_per_func, self.reward_weights.cpu(), aggregation=self.multi_objective_aggregation)

    def _kept(self, context: dict[str, Any]) -> torch.Tensor:
        """What the strategy keeps, (Q, m), by the rewards that it is to see."""
        if self.num_rollouts == self.num_generations:
            return torch.arange(self.num_rollouts).repeat(self._num_prompts, 1)
        if self._selection_reward is None:
            rewards = weighted_sum(context["rewards_per_func"], self.reward_weights.cpu())
        else:
            rewards = context["rewards_per_func"][..., self._selection_reward]
        if self.args.exclude_truncated or self.mask_truncated_completions:
            rewards = rewards.masked_fill(context["truncated"], torch.nan)
        return select(
            self.args.down_sampling,
            self._strategy,
            rewards,
            self.num_generations,
            kwargs=self.args.down_sampling_kwargs or {},
            context=context,
        )

    def _without_infinities(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        for i in rewards_per_func.isinf().any(dim=0).nonzero().flatten().tolist():
            name = self.reward_func_names[i]
            if name not in self._infinite and self.accelerator.is_main_process:
                logger.warning(
                    f"The reward function {name!r} gave an infinite reward at step {self.state.global_step}, or one "
                    "too large for float32. Such rewards count as not given, as `None` does; return finite numbers."
                )
            self._infinite.add(name)
        return rewards_per_func.masked_fill(rewards_per_func.isinf(), torch.nan)

    def _gathered_lengths(self, generated: Generated) -> torch.Tensor:
        """Tokens that the model generated, and whether the rollout was truncated, of all processes: (Q n, 2)."""
        lengths = map(len, generated.completion_ids) if generated.tool_mask is None else map(sum, generated.tool_mask)
        truncated = (ids[-1] not in self._stop_tokens for ids in generated.completion_ids)
        rows = torch.tensor(list(zip(lengths, truncated, strict=True)), device=self.accelerator.device)
        return self.accelerator.gather(rows.long()).cpu()

    def _selection_generator(self) -> torch.Generator:
        # A step may see several generation batches; a resumed run must count them alike.
        step = self.state.global_step
        self._selections_at = (step, self._selections_at[1] + 1 if self._selections_at[0] == step else 0)
        return seeded_generator(self.args.seed, *self._selections_at)


def _index_of(reward_name: str | None, names: list[str]) -> int | None:
    if reward_name is None:
        return None
    if names.count(reward_name) != 1:
        raise ValueError(
            f"`selection_reward` is {reward_name!r}, but it must name exactly one reward function. The reward "
            f"functions are {names}."
        )
    return names.index(reward_name)


def _stop_tokens(generation_config: Any, tokenizer: Any) -> set[int | None]:
    """Tokens that end a complete rollout, as TRL counts them from 1.11 on: all that the model or tokenizer declare."""
    declared = generation_config.eos_token_id
    return {*(declared if isinstance(declared, list) else [declared]), tokenizer.eos_token_id, tokenizer.pad_token_id}
