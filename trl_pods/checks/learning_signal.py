"""Warning of a training that cannot learn: equal rewards, equal rewards of the kept rollouts, truncated completions."""

import logging
import math
from collections import Counter
from typing import Any

logger = logging.getLogger(__name__)

PATIENCE = 5  # generation batches in a row before a warning
_NEARLY_ALL = 0.95  # share of the completions that are cut, or of the rows that are masked


class LearningSignal:
    """
    Watches the metrics of generation batches and warns, once of each, of what lasts for `PATIENCE` of them in a row.

    - `frac_reward_zero_std` is 1: no prompt has rollouts of different reward. With `num_rollouts` equal to
      `num_generations` the metric is TRL's, which for `scale_rewards="batch"` and `"normalize_then_sum"` is 1 only if
      all rewards of the batch are equal.
    - It is less, but `pods/kept_frac_zero_std` is 1: the strategy keeps rollouts of equal reward. With
      `advantage_statistics="all"` they teach nonetheless, and there is no warning.
    - `completions/clipped_ratio` is at least 0.95: nearly all completions are truncated at `max_completion_length`.
    - `pods/frac_rows_masked` is at least 0.95, in the micro-batches of as many: nearly all rows are masked in the loss.
    """

    def __init__(self, args: Any):
        self._args = args
        self._times_in_a_row: Counter[str] = Counter()
        self._warned_of: set[str] = set()

    def see(self, metrics: dict[str, list[float]]) -> None:
        """Take note of a generation batch."""
        latest = {name: values[-1] for name, values in metrics.items() if values}
        no_variance = latest["frac_reward_zero_std"] == 1
        kept_no_variance = latest.get("pods/kept_frac_zero_std") == 1 and self._args.advantage_statistics == "kept"
        self._count("reward", no_variance, self._about_rewards(latest["reward"]))
        self._count("selection", kept_no_variance and not no_variance, self._about_selection())
        self._count("length", latest["completions/clipped_ratio"] >= _NEARLY_ALL, self._about_length())

    def see_update(self, metrics: dict[str, list[float]]) -> None:
        """Take note of a micro-batch."""
        is_masked = metrics["pods/frac_rows_masked"][-1] >= _NEARLY_ALL
        self._count("mask", is_masked, self._about_masks(), PATIENCE * self._args.steps_per_generation)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, for JSON."""
        return {"times_in_a_row": dict(self._times_in_a_row), "warned_of": sorted(self._warned_of)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what [`LearningSignal.state`] gave."""
        self._times_in_a_row, self._warned_of = Counter(state["times_in_a_row"]), set(state["warned_of"])

    def _count(self, trouble: str, is_there: bool, message: str, patience: int = PATIENCE) -> None:
        self._times_in_a_row[trouble] = self._times_in_a_row[trouble] + 1 if is_there else 0
        if self._times_in_a_row[trouble] >= patience and trouble not in self._warned_of:
            self._warned_of.add(trouble)
            logger.warning(message)

    def _about_rewards(self, mean_reward: float) -> str:
        if math.isnan(mean_reward):
            return (
                f"No learning signal: in {PATIENCE} generation batches in a row, no reward function scored a rollout. "
                "Check why they return `None` or NaN: whether the columns that they read hold what they look for."
            )
        return (
            f"No learning signal: in {PATIENCE} generation batches in a row, the rollouts of each prompt had equal "
            f"rewards (mean reward {mean_reward:g}), so that rewards did not move the model. Check that the reward is "
            "not constant by mistake, that the completions have the format it looks for (a chat template that "
            "prefills `<think>` leaves them without that tag), and that the task is neither too hard nor too easy."
        )

    def _about_selection(self) -> str:
        return (
            f"No learning signal: in {PATIENCE} generation batches in a row, rollouts differed in reward, but those "
            f"that `down_sampling={self._args.down_sampling!r}` kept of each prompt did not. Use a strategy that keeps "
            "different rewards, such as 'max_variance', or set `advantage_statistics='all'`."
        )

    def _about_length(self) -> str:
        return (
            f"In {PATIENCE} generation batches in a row, at least {_NEARLY_ALL:.0%} of the completions were truncated "
            f"at `max_completion_length` ({self._args.max_completion_length} tokens), so that what rewards look for at "
            "their end may never be written. Raise `max_completion_length`, or ask for shorter completions."
        )

    def _about_masks(self) -> str:
        args = self._args
        ways_out = {
            "raise `max_completion_length` (`mask_truncated_completions`)": args.mask_truncated_completions,
            "raise `vllm_importance_sampling_clip_max` (`vllm_importance_sampling_mode`)": args.use_vllm,
            "raise `off_policy_mask_threshold`": args.off_policy_mask_threshold is not None,
        }
        return (
            f"No learning signal: in {PATIENCE} generation batches in a row, at least {_NEARLY_ALL:.0%} of the trained "
            f"rows had no token in the loss. By what masks them: {', or '.join(w for w in ways_out if ways_out[w])}."
        )
