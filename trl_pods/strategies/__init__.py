"""
The built-in down-sampling strategies: which m of n rollouts to train on.

All strategies are pure, batched over prompts, and share one policy:

- a rollout whose reward is not finite (NaN where no reward function scored it) counts as unscored. Unscored rollouts
  are kept only where a prompt has fewer than m scored ones, earliest generated first;
- among rollouts that a strategy holds equal, the earliest generated are kept unless the strategy says otherwise, so
  that the same input always gives the same indices, and a prompt of equal rewards (and lengths) gives its first m;
- rewards are compared exactly. Whether a group has any variance to speak of, as in the metrics, is decided with a
  tolerance (see `trl_pods.downsampling.metrics.has_no_variance`);
- with m = n, all are kept.
"""

from .builtin import (
    balanced,
    length_aware_max_variance,
    max_abs_advantage,
    max_reward,
    max_variance,
    percentile,
    random,
    reward_per_token,
    shortest,
)

__all__ = [
    "balanced",
    "length_aware_max_variance",
    "max_abs_advantage",
    "max_reward",
    "max_variance",
    "percentile",
    "random",
    "reward_per_token",
    "shortest",
]
