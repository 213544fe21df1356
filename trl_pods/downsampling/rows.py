"""
Narrowing a batch to its kept rows, also where a group of rollouts straddles processes.

Every process holds `num_rows` consecutive rows of the P n rollouts, and must go on with exactly as many of the P m kept
ones as every other process, in group order, or collectives hang. Kept rows are named by their place among all P n.
"""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object

from ..checks.trl_seam import Generated

# A column is one value for each row; its key says where it stands in the batch.
Columns = dict[Any, list]

# Numbers of each token, and the kind of array that holds what TRL's tensors of them hold.
_PER_TOKEN = {"prompt_ids": np.int32, "completion_ids": np.int32, "tool_mask": np.int8, "logprobs": np.float32}


def columns_of(generated: Generated, num_rows: int) -> Columns:
    """Find the columns in what `GRPOTrainer._generate` returns."""
    columns: Columns = {}
    for key, values in _items(generated):
        if isinstance(values, list) and len(values) == num_rows:
            columns[key] = values
        elif isinstance(values, list) and values:
            raise ValueError(
                f"{key!r} of the generated batch has {len(values)} values for {num_rows} rollouts. A list must have "
                "one value per rollout, also in what a `rollout_func` returns."
            )
        elif not isinstance(values, list) and values is not None and not isinstance(key, tuple):
            raise ValueError(
                f"{key!r} of the generated batch is a `{type(values).__name__}`, so it is unknown how to keep a part "
                "of it. This TRL returns something new from `_generate`; install a supported version."
            )
    return columns


def replace_columns(generated: Generated, columns: Columns) -> Generated:
    """Put other columns in the place of those found by [`columns_of`]."""
    items: dict[str, Any] = {}
    for name, item in generated._asdict().items():
        if isinstance(item, dict):
            item = {key: columns.get((name, key), value) for key, value in item.items()}
        items[name] = columns.get(name, item)
    return Generated(**items)


def keep_rows(
    columns: Columns, kept: torch.Tensor, *, num_rows: int, process_index: int, num_processes: int
) -> Columns:
    """
    Narrow columns to this process's share of the kept rows, fetching those that other processes hold.

    Rows that are fetched arrive in process order, so `kept` must be ascending. Nothing is exchanged when every process
    already holds its own share, as it does whenever no group straddles two processes.
    """
    shares = kept.view(num_processes, -1)
    if _all_hold_their_share(shares, num_rows):
        own = (shares[process_index] - process_index * num_rows).tolist()
        return {key: [values[i] for i in own] for key, values in columns.items()}
    held = kept[kept // num_rows == process_index] - process_index * num_rows
    rows = gather_object([pack({key: values[i] for key, values in columns.items()}) for i in held.tolist()])
    size = shares.size(1)
    rows = [unpack(row) for row in rows[process_index * size : (process_index + 1) * size]]
    # A process whose batch has no images lacks that column, where another has it.
    keys = dict.fromkeys([*columns, *(key for row in rows for key in row)])
    return {key: [row.get(key) for row in rows] for key in keys}


def pack(row: dict[Any, Any]) -> dict[Any, Any]:
    """Make arrays of a row's lists of numbers, which are smaller and faster to read; `None` has no place there."""
    packed = {
        key: np.array(row[key], dtype=kind)
        for key, kind in _PER_TOKEN.items()
        if key in row and None not in row[key]  # a log-prob that vLLM could not compute
    }
    return row | packed


def unpack(row: dict[Any, Any]) -> dict[Any, Any]:
    """Make lists of the arrays of [`pack`]."""
    return row | {key: row[key].tolist() for key in _PER_TOKEN if isinstance(row.get(key), np.ndarray)}


def copies_for_rewards(inputs: list[dict[str, Any]], prompts: list, generated: Generated) -> tuple[list, ...]:
    """
    Copy what the host calculates rewards from, so that a reward function that writes into it does not change training.

    TRL has made tensors of it by then. Of the dataset's columns, images alone are used afterwards.
    """
    images = [{key: row[key] for key in ("image", "images") if key in row} for row in inputs]
    images, prompts, completions = copy.deepcopy((images, prompts, generated.completions))
    completion_ids = [copy.copy(ids) for ids in generated.completion_ids]  # of numbers, which need no deep copy
    return [row | own for row, own in zip(inputs, images, strict=True)], prompts, completions, completion_ids


def dataset_images(inputs: list[dict[str, Any]]) -> list | None:
    """Collect the images of dataset rows, as TRL reads them."""
    if "images" in inputs[0]:
        images = [row.get("images") for row in inputs]
    elif "image" in inputs[0]:
        images = [None if row.get("image") is None else [row["image"]] for row in inputs]
    else:
        return None
    return None if all(image == [] for image in images) else images


def add_extra_fields(inputs: list[dict[str, Any]], generated: Generated, columns: Columns) -> None:
    """Put the further fields of a `rollout_func` into the rows, where reward functions find them."""
    for key, value in generated.extra_fields.items():
        values = columns.get(("extra_fields", key), [value] * len(inputs))
        for row, own in zip(inputs, values, strict=True):
            row[key] = own


def _items(generated: Generated) -> Iterator[tuple[Any, Any]]:
    for name, item in generated._asdict().items():
        if isinstance(item, dict):
            yield from (((name, key), value) for key, value in item.items())
        else:
            yield name, item


def _all_hold_their_share(shares: torch.Tensor, num_rows: int) -> bool:
    """Whether row w of the kept rows (W, P m / W) lies on process w, for every w: the same answer everywhere."""
    processes = torch.arange(len(shares), device=shares.device).unsqueeze(1)
    return bool((shares // num_rows == processes).all())
