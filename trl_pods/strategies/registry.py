"""Down-sampling strategies by name: a dictionary, a decorator and two look-ups."""

import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

from ..checks.errors import did_you_mean
from .importing import import_path

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
    tensor (P, n), in tokens), `truncated` (bool tensor (P, n), truncated at `max_completion_length`), `generator`
    (`torch.Generator` seeded from `args.seed` and the step) and `step` (`int`, optimizer steps done so far). Any
    further parameters are set by `down_sampling_kwargs`. With several processes, the main process calls it, on the
    rewards of all, and all keep what it returns: they cannot differ in a rounding, in a random number, or in whether
    it fails.

    Args:
        name (`str`):
            Name to use in `PODSGRPOConfig(down_sampling=...)`.

    Returns:
        `Callable`: Decorator that registers the function and returns it unchanged.

    Raises:
        TypeError: The name is no string, or what is registered is no function.
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

    if not isinstance(name, str):
        raise TypeError(
            f"A strategy is registered under a name, not under {name!r}. Write `@register_strategy('name')`."
        )

    def register(strategy: "Strategy") -> "Strategy":
        if not callable(strategy):
            raise TypeError(f"The strategy {name!r} is {strategy!r}, not a function. Register a function.")
        taken = _built_in().get(name)
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
            import path such as `"my_lib.strategies.my_strategy"` (also found in the current directory).

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
        return _load_entry_point(name, installed[name])
    if "." in name:
        return _import_path(name)
    known = sorted({*strategies, *installed})
    hint = did_you_mean(name, known, "")
    raise ValueError(
        f"There is no down-sampling strategy {name!r}. {hint}{' ' if hint else ''}Choose one of {known}, give a "
        "dotted import path, or register your own with `register_strategy`."
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
    installed = {
        name: StrategyInfo("", " and ".join(_provider(entry) for entry in entries))
        for name, entries in _installed().items()
    }
    registered = {name: _info(strategy) for name, strategy in _built_in().items()}
    return dict(sorted((installed | registered).items()))


def _built_in() -> "dict[str, Strategy]":
    import_module(__package__)  # registers the built-in strategies
    return _STRATEGIES


def _installed() -> dict[str, list[EntryPoint]]:
    """Entry points by name; more than one where several packages offer the same name."""
    by_name: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        by_name.setdefault(entry.name, []).append(entry)
    return by_name


def _load_entry_point(name: str, entries: list[EntryPoint]) -> "Strategy":
    if len({entry.value for entry in entries}) > 1:
        raise ValueError(
            f"The strategy {name!r} is offered by {' and by '.join(_provider(entry) for entry in entries)}. Uninstall "
            f"one, or name the function by its import path, such as {entries[0].value.replace(':', '.')!r}."
        )
    entry = entries[0]
    try:
        return _checked(name, entry.load())
    except Exception as error:
        raise ValueError(
            f"The strategy {name!r} of {_provider(entry)} cannot be loaded from {entry.value!r}: {error!r}. "
            "Repair or uninstall that package, or choose another strategy."
        ) from error


def _import_path(path: str) -> "Strategy":
    try:
        strategy = import_path(path)
    except Exception as error:  # whatever the module does when it is imported
        raise ValueError(
            f"The down-sampling strategy {path!r} cannot be imported: {error!r}. Check the import path, or choose one "
            f"of {sorted(_built_in())}."
        ) from error
    return _checked(path, strategy)


def _checked(name: str, strategy: Any) -> "Strategy":
    if not callable(strategy):
        raise ValueError(f"The down-sampling strategy {name!r} is {strategy!r}, not a function. Name a function.")
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
    # A notebook cell or a reloaded module defines the same function anew; that is not a clash of names. Lambdas, and
    # functions made inside others, share a path without being the same.
    return one is other or (hasattr(one, "__qualname__") and _path(one) == _path(other) and "<" not in _path(one))
