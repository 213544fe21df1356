"""The plan as a table in the terminal."""

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from .plan import Pair, Plan


def show(plan: Plan, console: Console) -> None:
    """
    Print the plan, the recommended pair and what to keep in mind.

    Args:
        plan ([`Plan`]):
            The plan.
        console (`rich.console.Console`):
            Where to.
    """
    best = plan.best
    console.print(Text(f"{plan.title}, {plan.rule}", style="bold"))
    console.print(_table(plan))
    console.print(
        Text(
            f"In each cell: signal per second (best = 1.00); seconds and signal for each {plan.num_prompts} prompts.",
            style="dim",
        )
    )
    console.print(
        f"Recommended: [bold]--num_rollouts {best.num_rollouts} --num_generations {best.num_generations}[/bold]: "
        f"{seconds_text(best.seconds)} for each {plan.num_prompts} prompts.",
        highlight=False,
    )
    console.print(Text(f"Rewards: {plan.rewards}.\n{_cost(plan)}"))
    for caution in plan.cautions:
        console.print(Text(f"Caution: {caution}", style="yellow"))


def seconds_text(seconds: float) -> str:
    """
    Write seconds with three digits.

    Args:
        seconds (`float`):
            Seconds.

    Returns:
        `str`: The text.

    Example:

    ```python
    >>> from trl_pods.planning.table import seconds_text

    >>> seconds_text(0.06164), seconds_text(21.371), seconds_text(1234.5)
    ('0.0616 s', '21.4 s', '1234 s')

    ```
    """
    return f"{seconds:.0f} s" if seconds >= 1000 else f"{seconds:#.3g} s".replace(". s", " s")


def _table(plan: Plan) -> Table:
    rollouts = sorted({pair.num_rollouts for pair in plan.pairs})
    pairs = {(pair.num_rollouts, pair.num_generations): pair for pair in plan.pairs}
    columns = [Column(f"n = {n}", justify="center", no_wrap=True) for n in rollouts]
    table = Table("", *columns, show_lines=True)
    for m in sorted({pair.num_generations for pair in plan.pairs}):
        table.add_row(f"m = {m}", *(_cell(pairs.get((n, m)), plan) for n in rollouts))
    return table


def _cell(pair: Pair | None, plan: Plan) -> Text:
    if pair is None:
        return Text("")
    relative = f"{plan.relative(pair):.2f}"
    first = Text(f"> {relative} <", "bold green") if pair == plan.best else Text(relative)
    return first.append(f"\n{seconds_text(pair.seconds)}\n{pair.signal:.3g}", "not bold default")


def _cost(plan: Plan) -> str:
    cost = plan.cost
    return (
        f"Seconds: {cost.per_batch_sampled:.3g} + {cost.per_rollout:.3g} n to sample, "
        f"{cost.per_batch_trained:.3g} + {cost.per_kept:.3g} m to train, {cost.selecting:.3g} to select; "
        "micro-batches of fixed size, so the update is paid per row."
    )
