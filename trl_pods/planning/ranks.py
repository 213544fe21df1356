"""How well predictions rank pairs, against what was measured."""

import math
from collections.abc import Mapping

import pandas as pd


def rank_correlation(predicted: Mapping[tuple[int, int], float], measured: Mapping[tuple[int, int], float]) -> float:
    """
    Compute Spearman's rank correlation of two values of pairs.

    Args:
        predicted (`Mapping[tuple[int, int], float]`):
            Value of each pair (n, m), such as `plan.signal_per_second`.
        measured (`Mapping[tuple[int, int], float]`):
            Value of each pair (n, m), such as the accuracy gained per second. Pairs that only one of the two has are
            left out.

    Returns:
        `float`: Correlation of the ranks, in [-1, 1], equal values having the mean of their ranks; NaN if all values
        of one are equal.

    Raises:
        ValueError: They have fewer than three pairs in common.

    Example:

    ```python
    >>> from trl_pods.planning import rank_correlation

    >>> rank_correlation({(8, 2): 1.0, (8, 4): 2.0, (16, 4): 5.0}, {(8, 2): 0.1, (8, 4): 0.3, (16, 4): 0.2})
    0.5

    ```
    """
    shared = sorted(predicted.keys() & measured.keys())
    if len(shared) < 3:
        raise ValueError(f"Only the pairs {shared} are in both, but a rank correlation needs three or more.")
    ranks = [pd.Series([values[pair] for pair in shared]).rank() for values in (predicted, measured)]
    if any(rank.nunique() == 1 for rank in ranks):
        return math.nan
    return float(round(ranks[0].corr(ranks[1]), 12))
