"""
Zero-variance prompts: which prompts of a generation batch go on to the update, and how the others are made up for.

All rows of a prompt whose rewards are equal have advantage 0. They do nothing in the update, but cost a forward and a
backward pass; so the trainer leaves such prompts out (`zero_variance`), and may sample others in their place
(`prompt_oversampling`).

Shapes: Q prompts sampled, P <= Q that the update counts, K <= P that go on to it, m rollouts kept per prompt.
"""

from typing import Any

import torch
from trl import GRPOTrainer

from .selection import COUNTED, LEFT_OUT, TRAINED, Selection

# What losses divide by, which must not change when rows are skipped.
ROWS = ("grpo", "sapo", "luspo", "dr_grpo")  # of a micro-batch
TOKENS_OF_MICRO_BATCH = ("bnpo",)
TOKENS_OF_GENERATION_BATCH = ("dapo", "cispo", "vespo")  # `num_items_in_batch`


def why_not_skipped(trainer: Any, host: type) -> str | None:
    """Name what gives the rows of zero-variance prompts an effect, or what hides how the loss counts them."""
    aggregation = trainer.multi_objective_aggregation
    reasons = {
        "`beta` is not 0": trainer.beta != 0.0,
        "`entropy_coef` is not 0": trainer.entropy_coef != 0.0,
        "`use_adaptive_entropy` is on": trainer.use_adaptive_entropy,
        "`top_entropy_quantile` is below 1": trainer.top_entropy_quantile < 1.0,
        "`router_aux_loss_coef` is not 0": trainer.aux_loss_enabled,
        f"`multi_objective_aggregation` is {aggregation!r}": aggregation != "sum_then_normalize",
        f"`{host.__name__}` has a loss of its own": host is not GRPOTrainer,
        "Liger has a loss of its own": trainer.args.use_liger_kernel and hasattr(GRPOTrainer, "compute_liger_loss"),
        f"`loss_type` {trainer.loss_type!r} is unknown": trainer.loss_type
        not in (*ROWS, *TOKENS_OF_MICRO_BATCH, *TOKENS_OF_GENERATION_BATCH),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def roles(
    variance: torch.Tensor, has_signal: torch.Tensor, lengths: torch.Tensor, *, num_counted: int, unit: int | None
) -> torch.Tensor:
    """
    Say what becomes of each prompt, given the variance of its kept rewards and the tokens of its longest kept rollout.

    The P of largest variance are counted, of equal ones the first. Of these all go on (`unit` is `None`), or those with
    a signal, and as many others, of the shortest, as fill K up to a multiple of `unit`, of which P is one.

    Returns a long tensor of shape (Q,).
    """
    counted = variance.masked_fill(~has_signal, -1).argsort(descending=True, stable=True)[:num_counted]
    found = torch.full_like(lengths, LEFT_OUT)
    found[counted] = COUNTED if unit else TRAINED
    if unit:
        num_trained = -(-max(int(has_signal[counted].sum()), 1) // unit) * unit
        first = lengths[counted].masked_fill(has_signal[counted], -1).argsort(stable=True)
        found[counted[first[:num_trained]]] = TRAINED
    return found


def row_weights(selection: Selection, loss_type: str, num_micro_batches: int) -> torch.Tensor:
    """
    Compute the factors of the trained rows' advantages, (K m,), by which the loss is that of all rows that are counted.

    `num_micro_batches` is that of all processes. Those of `TOKENS_OF_MICRO_BATCH` must be multiplied by the tokens of
    the micro-batch that a row comes to lie in; what they divide by is the tokens of the one in which it would lie.
    """
    counted, num_kept = selection.counted_prompts, selection.kept.size(1)
    share = torch.ones(len(counted) * num_kept)
    if loss_type in ROWS:
        share *= len(selection.trained_prompts) / len(counted)
    elif loss_type in TOKENS_OF_MICRO_BATCH:
        tokens = _tokens(selection, counted).view(num_micro_batches, -1)
        share = (1 / tokens.sum(dim=1, keepdim=True).clamp(min=1)).expand_as(tokens).flatten()
    return share[torch.isin(counted, selection.trained_prompts).repeat_interleave(num_kept)]


def skipped_tokens(selection: Selection) -> int:
    """Count the tokens of rows that are counted, but do not go on, as `num_items_in_batch` would."""
    return int(
        _tokens(selection, selection.counted_prompts).sum() - _tokens(selection, selection.trained_prompts).sum()
    )


def _tokens(selection: Selection, prompts: torch.Tensor) -> torch.Tensor:
    """Tokens of the kept rows of some prompts that the loss sees, (prompts m,)."""
    return selection.loss_tokens.flatten()[selection.rows(prompts)]
