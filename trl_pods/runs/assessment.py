"""Whether down-sampling helps: what a run saved, and in which direction to change n or m, from its log."""

from itertools import pairwise
from statistics import fmean
from typing import Any

from .record import RunRecord

DEAR, CHEAP = 3.0, 5.0  # cost ratios, see docs/results.md, "What to choose"


def assess(entries: list[dict[str, Any]], record: RunRecord) -> list[str]:
    """Say in three sentences what the log of a run shows; nothing of a run that logged a single generation batch."""
    batches = [entry for entry in entries if "pods/trained_rows" in entry]
    if len(batches) < 2:
        return []
    share = fmean(entry["frac_reward_zero_std"] for entry in batches)
    sentences = [f"{100 * share:.0f} % of the prompts had no variance: the rewards of their rollouts were equal."]
    sentences.append(_savings(entries, fmean(entry["pods/trained_rows"] for entry in batches), record))
    ratios = [entry["pods/cost_ratio"] for entry in entries if "pods/cost_ratio" in entry]
    return [*sentences, _direction(ratios[-1], record)]


def _savings(entries: list[dict[str, Any]], trained: float, record: RunRecord) -> str:
    """
    What was saved by the rows that were not computed, at the measured seconds per row; `trained` per batch.

    It is an upper bound, because what an update costs whatever its size counts as cost of the rows.
    """
    skipped = record.num_prompts * record.num_generations - trained
    if skipped <= 0:
        return "No row was skipped."
    timed = [entry for entry in entries if "pods/time/update" in entry]
    steps = [0, *(entry["step"] for entry in timed)]
    spans = [step - before for before, step in pairwise(steps)]
    seconds = sum(
        span * (entry["pods/time/update"] + entry["pods/time/logps"]) for span, entry in zip(spans, timed, strict=True)
    )
    batches = float(steps[-1] * record.generations_per_step)
    return (
        f"{skipped * batches:,.0f} of {(skipped + trained) * batches:,.0f} rows were skipped, which saved at most "
        f"{seconds * skipped / trained:,.3g} s at {1000 * seconds / (trained * batches):,.3g} ms per row."
    )


def _direction(cost_ratio: float, record: RunRecord) -> str:
    cost = f"a trained row costs as much as {cost_ratio:.3g} sampled rollouts (`pods/cost_ratio`)"
    if cost_ratio >= CHEAP:
        return f"Rollouts are cheap here: {cost}. A larger `num_rollouts` or a smaller `num_generations` may pay."
    if cost_ratio > DEAR:
        return f"Rollouts are neither dear nor cheap here: {cost}."
    ways = ["a smaller `num_rollouts`", "a larger `num_generations`"]
    ways = ways if record.num_rollouts > record.num_generations else []
    ways += ["a smaller `prompt_oversampling`"] if record.prompt_oversampling > 1 else []
    advice = f"What may pay: {', '.join(ways)}." if ways else "Sampling more than are trained is unlikely to pay."
    return f"Rollouts are dear here: {cost}. {advice}"
