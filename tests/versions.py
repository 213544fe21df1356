"""Tests of what TRL itself cannot do in the oldest version that is supported."""

import pytest
import trl
from packaging.version import Version


def not_in_trl_1_10(why: str) -> pytest.MarkDecorator:
    """Skip where TRL 1.10 is installed; `why` says what a later version does better."""
    return pytest.mark.skipif(Version(trl.__version__) < Version("1.11"), reason=f"TRL 1.10: {why}")


ends_turns_at_any_stop_token = not_in_trl_1_10(
    "the model's further stop tokens do not end a turn (https://github.com/huggingface/trl/issues/7039)"
)
takes_async_callables = not_in_trl_1_10(
    "an object with an async `__call__` is not awaited (https://github.com/huggingface/trl/pull/7213)"
)
