"""
Zero-variance prompts: which prompts of a generation batch go on to the update, and how the others are made up for.

All rows of a prompt whose rewards are equal have advantage 0. They do nothing in the update, but cost a forward and a
backward pass; so the trainer leaves such prompts out (`zero_variance`), and may sample others in their place
(`prompt_oversampling`).

Shapes: Q prompts sampled, P <= Q that the update counts, K <= P that go on to it, m rollouts kept per prompt.
"""

from collections.abc import Sequence
from typing import Any

import torch
from trl import GRPOConfig, GRPOTrainer

from .selection import COUNTED, FILLING, LEFT_OUT, TRAINED, Selection

# Methods that make the advantages and the loss.
OF_THE_UPDATE = {"_generate_and_score_completions", "compute_loss", "_compute_loss"}

# What losses divide by, which must not change when rows are skipped.
ROWS = ("grpo", "sapo", "luspo", "dr_grpo")  # of a micro-batch
TOKENS_OF_MICRO_BATCH = ("bnpo",)
TOKENS_OF_GENERATION_BATCH = ("dapo", "cispo", "vespo")  # `num_items_in_batch`


def why_not_skipped(args: GRPOConfig, trainer: Any = None, behind: Sequence[type] = ()) -> str | None:
    """
    Name what gives the rows of zero-variance prompts an effect, or what hides how the loss counts them.

    Of a `trainer`, the classes `behind` ours are looked at, too.
    """
    aggregation, known = args.multi_objective_aggregation, (*ROWS, *TOKENS_OF_MICRO_BATCH, *TOKENS_OF_GENERATION_BATCH)
    reasons = {
        "`beta` is not 0": args.beta != 0.0,
        "`entropy_coef` is not 0": args.entropy_coef != 0.0,
        "`use_adaptive_entropy` is on": args.use_adaptive_entropy,
        "`top_entropy_quantile` is below 1": args.top_entropy_quantile < 1.0,
        f"`multi_objective_aggregation` is {aggregation!r}": aggregation != "sum_then_normalize",
        f"`loss_type` {args.loss_type!r} is unknown": args.loss_type not in known,
        "Liger has a loss of its own": args.use_liger_kernel and hasattr(GRPOTrainer, "compute_liger_loss"),
    }
    if trainer is not None:
        reasons["`router_aux_loss_coef` is not 0"] = trainer.aux_loss_enabled
        host = next(c for c in behind if not OF_THE_UPDATE.isdisjoint(vars(c)))
        reasons[f"`{host.__name__}` has an update of its own"] = host is not GRPOTrainer
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
    if unit is None:
        found[counted] = TRAINED
        return found
    num_trained = -(-max(int(has_signal[counted].sum()), 1) // unit) * unit
    first = counted[lengths[counted].masked_fill(has_signal[counted], -1).argsort(stable=True)]
    found[first[num_trained:]] = COUNTED
    found[first[:num_trained]] = FILLING
    found[counted[has_signal[counted]]] = TRAINED
    return found


def row_weights(selection: Selection, counted: torch.Tensor, loss_type: str, num_micro_batches: int) -> torch.Tensor:
    """
    Compute factors of the trained rows' advantages, (K m,), by which the loss is that of the rows of `counted` prompts.

    `num_micro_batches` is that of all processes. Those of `TOKENS_OF_MICRO_BATCH` must be multiplied by the tokens of
    the micro-batch that a row comes to lie in. They divide by the tokens of the one in which it would lie, were all
    counted rows dealt out in order; where there are fewer than trained ones, by the mean over micro-batches.
    """
    trained, num_kept = selection.trained_prompts, selection.kept.size(1)
    weights = (selection.roles[trained] == TRAINED).repeat_interleave(num_kept).float()
    if loss_type in ROWS:
        weights *= len(trained) / max(len(counted), 1)
    elif loss_type in TOKENS_OF_MICRO_BATCH and len(counted) < len(trained):
        weights *= num_micro_batches / _tokens(selection, counted).sum().clamp(min=1)
    elif loss_type in TOKENS_OF_MICRO_BATCH:
        tokens = _tokens(selection, counted).view(num_micro_batches, -1)
        share = (1 / tokens.sum(dim=1, keepdim=True).clamp(min=1)).expand_as(tokens).flatten()
        weights *= share[torch.isin(counted, trained).repeat_interleave(num_kept)]
    return weights


def tokens_to_add(selection: Selection, counted: torch.Tensor) -> int:
    """Count by how many tokens the rows of `counted` prompts exceed those that are trained, for the loss."""
    return int(_tokens(selection, counted).sum() - _tokens(selection, selection.trained_prompts).sum())


def _tokens(selection: Selection, prompts: torch.Tensor) -> torch.Tensor:
    """Tokens of the kept rows of some prompts that the loss sees, (prompts m,)."""
    return selection.loss_tokens.flatten()[selection.rows(prompts)]
