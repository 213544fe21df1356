"""Down-sampling strategies by name: a dictionary, a decorator and two look-ups."""

import inspect
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    Strategy = Callable[..., torch.Tensor]

ENTRY_POINT_GROUP = "trl_pods.strategies"

_STRATEGIES: "dict[str, Strategy]" = {}


class StrategyInfo(NamedTuple):
    """What is known of a strategy without calling it."""

    summary: str  # first sentence of its docstring
    source: str  # what its docstring says after "Source:", or else where it comes from


def register_strategy(name: str) -> "Callable[[Strategy], Strategy]":
    """
    Register a down-sampling strategy under a name.

    A strategy is a function `(rewards, num_kept, **context) -> indices`:

    - `rewards`: float tensor of shape (P, n), the rewards of n rollouts for each of P prompts. It is NaN where a
      rollout has no score; such rollouts may be kept only where a prompt has fewer than `num_kept` scored ones.
    - `num_kept`: how many rollouts to keep per prompt, m, with 2 <= m <= n.
    - returns: long tensor of shape (P, m) with distinct column indices in each row, in any order.

    It receives, of the following keyword arguments, those that its signature names, or all if it takes `**kwargs`:
    `rewards_per_func` (float tensor (P, n, F), NaN where a reward function gave no score), `completion_lengths` (long
    tensor (P, n), in tokens), `truncated` (bool tensor (P, n), cut at `max_completion_length`), `generator`
    (`torch.Generator` seeded from `args.seed` and the step, equal on all processes) and `step` (`int`, optimizer steps
    done so far). Any further parameters are set by `down_sampling_kwargs`.

    Args:
        name (`str`):
            Name to use in `PODSGRPOConfig(down_sampling=...)`.

    Returns:
        `Callable`: Decorator that registers the function and returns it unchanged.

    Raises:
        ValueError: The name is already taken by another function.

    Example:

    ```python
    >>> from trl_pods import register_strategy

    >>> @register_strategy("first")
    ... def first(rewards, num_kept):
    ...     import torch
    ...
    ...     return torch.arange(num_kept).expand(len(rewards), -1)

    ```
    """

    def register(strategy: "Strategy") -> "Strategy":
        taken = _STRATEGIES.get(name)
        if taken is not None and not _same_function(taken, strategy):
            raise ValueError(
                f"The strategy name {name!r} is already registered by `{_path(taken)}`, so `{_path(strategy)}` cannot "
                "take it. Choose another name."
            )
        _STRATEGIES[name] = strategy
        return strategy

    return register


def get_strategy(name: str) -> "Strategy":
    """
    Look a strategy up by its registered name, by the name of an installed entry point, or by its import path.

    Args:
        name (`str`):
            Registered name such as `"max_variance"`, name in the entry-point group `trl_pods.strategies`, or a dotted
            import path such as `"my_lib.strategies.my_rule"` (also found in the current directory).

    Returns:
        `Callable`: The strategy, see [`register_strategy`] for its contract.

    Raises:
        ValueError: There is no such strategy, its module or package cannot be imported, or `name` is no string.

    Example:

    ```python
    >>> from trl_pods import get_strategy

    >>> get_strategy("max_reward").__name__
    'max_reward'

    ```
    """
    if not isinstance(name, str):
        raise ValueError(
            f"A down-sampling strategy is given by its name or import path, not by {name!r}. Register a function with "
            "`register_strategy` and give its name."
        )
    strategies = _built_in()
    if name in strategies:
        return strategies[name]
    installed = _installed()
    if name in installed:
        return _load_entry_point(installed[name])
    if "." in name:
        return _import_path(name)
    raise ValueError(
        f"There is no down-sampling strategy {name!r}. Choose one of {sorted(strategies | installed)}, give a dotted "
        "import path, or register your own with `register_strategy`."
    )


def list_strategies() -> dict[str, StrategyInfo]:
    """
    List every strategy that can be used by name.

    Returns:
        `dict[str, StrategyInfo]`: For each name, in alphabetical order, its `summary` (the first paragraph of its
        docstring) and its `source` (the paragraph that begins with "Source:", or else the module or package that it
        comes from). Strategies of other packages are not imported for this, so theirs say no more than the package.

    Example:

    ```python
    >>> from trl_pods import list_strategies

    >>> list_strategies()["max_reward"]
    StrategyInfo(summary='Keep the m rollouts of highest reward.', source='PODS (arXiv 2504.13818)')

    ```
    """
    installed = {name: StrategyInfo("", _provider(entry)) for name, entry in _installed().items()}
    registered = {name: _info(strategy) for name, strategy in _built_in().items()}
    return dict(sorted((installed | registered).items()))


def _built_in() -> "dict[str, Strategy]":
    import_module(".strategies", __package__)  # registers the built-in strategies
    return _STRATEGIES


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _load_entry_point(entry: EntryPoint) -> "Strategy":
    try:
        return entry.load()
    except Exception as error:
        raise ValueError(
            f"The strategy {entry.name!r} of {_provider(entry)} cannot be loaded from {entry.value!r}: {error!r}. "
            "Repair or uninstall that package, or choose another strategy."
        ) from error


def _import_path(path: str) -> "Strategy":
    module_path, _, attribute = path.rpartition(".")
    if os.getcwd() not in sys.path:  # as TRL does for `reward_funcs`
        sys.path.insert(0, os.getcwd())
    try:
        strategy: Any = getattr(import_module(module_path), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"The down-sampling strategy {path!r} cannot be imported: {error}. Check the import path, or choose one "
            f"of {sorted(_built_in())}."
        ) from error
    if not callable(strategy):
        raise ValueError(f"The down-sampling strategy {path!r} is {strategy!r}, not a function. Name a function.")
    return strategy


def _provider(entry: EntryPoint) -> str:
    return f"the package {entry.dist.name!r}" if entry.dist is not None else "an unnamed package"


def _info(strategy: "Strategy") -> StrategyInfo:
    paragraphs = [" ".join(text.split()) for text in (inspect.getdoc(strategy) or "").split("\n\n")]
    sources = [text.removeprefix("Source: ").rstrip(".") for text in paragraphs if text.startswith("Source: ")]
    return StrategyInfo(paragraphs[0], sources[0] if sources else strategy.__module__)


def _path(strategy: "Strategy") -> str:
    return f"{strategy.__module__}.{getattr(strategy, '__qualname__', type(strategy).__qualname__)}"


def _same_function(one: "Strategy", other: "Strategy") -> bool:
    # A notebook cell or a reloaded module defines the same function anew; that is not a clash of names.
    return one is other or (_path(one) == _path(other) and "<lambda>" not in _path(one))
