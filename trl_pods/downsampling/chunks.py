"""
Sampling and reward models in chunks of rows, as a mixin in front of TRL's `GRPOTrainer`.

Without vLLM, TRL samples all rows of a process in one call of `generate`, and a reward model scores them in one forward
pass. Of n rollouts per prompt these would take n / m times the memory that they take of m; in chunks they take as much.
"""

import itertools
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from ..checks.trl_seam import Host


class InChunks(Host):
    """
    Has `generate` and reward models take at most `rollout_batch_size` rows of this process at once, in training.

    Overrides `__init__` (wraps reward models) and `_generate_single_turn` (calls `super()` for each chunk). Processes
    sample equally many rows, so all call `generate` equally often, as ZeRO-3 and FSDP need; with tools that holds for
    the first turn alone, so there they take all rows at once.
    """

    reward_funcs: list[Any]

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.reward_funcs = [
            RewardModelInChunks(function, weakref.WeakMethod(self._chunks))
            if isinstance(function, torch.nn.Module)
            else function
            for function in self.reward_funcs
        ]

    def _chunks(self, num_rows: int) -> list[slice]:
        """The rows to take at once; in evaluation all, as TRL does."""
        size = self.args.rollout_batch_size or self.args.per_device_train_batch_size * self.args.steps_per_generation
        if not self.model.training:
            size = num_rows
        return [slice(first, min(first + size, num_rows)) for first in range(0, num_rows, size)]

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, *args, **kwargs):
        generate, chunks = super()._generate_single_turn, self._chunks(len(prompt_ids))
        offsets = row_offsets(images, multimodal_fields, len(prompt_ids))
        has_queue = self.use_vllm or self.use_transformers_continuous_batching  # and a memory of fixed size
        may_differ = self.tools and (self.is_deepspeed_enabled or self.is_fsdp_enabled)
        if len(chunks) == 1 or offsets is None or has_queue or may_differ:
            return generate(prompt_ids, images, multimodal_fields, *args, **kwargs)
        generated = []
        for rows in chunks:
            fields = _fields_of(multimodal_fields, offsets, rows)
            # TRL names the types of the tokens by the fields that it finds; of rows without images they are not needed.
            is_text = "image_grid_thw" in multimodal_fields.keys() - fields.keys()
            own = kwargs | {"has_tool_images": False} if is_text else kwargs
            generated.append(generate(prompt_ids[rows], images and images[rows], fields, *args, **own))
        columns = zip(*generated, strict=True)  # completion ids, and log-probs or `None`
        return tuple(None if column[0] is None else [row for part in column for row in part] for column in columns)


class RewardModelInChunks(torch.nn.Module):
    """
    A reward model that takes its rows in chunks, and gives their logits as if it had taken them at once.

    `chunks()` is the function that cuts so many rows, or the weak reference to it: a trainer holds this model.
    """

    def __init__(self, model: torch.nn.Module, chunks: Callable[[], Any]):
        super().__init__()
        self.model = model
        self._chunks = chunks

    def forward(self, **inputs: torch.Tensor) -> Any:
        chunks = self._chunks()(len(inputs["input_ids"]))
        logits = [self.model(**{name: values[rows] for name, values in inputs.items()}).logits for rows in chunks]
        return SimpleNamespace(logits=torch.cat(logits))


def row_offsets(images: list | None, fields: dict[str, Any], num_rows: int) -> dict[str, list[int]] | None:
    """
    Find where in each multimodal field each row begins, and the last one ends.

    `None` where it is not known: of models that cut an image into tiles, TRL knows their number only after generation.
    """
    by_row = list(range(num_rows + 1))
    by_image = [0, *itertools.accumulate(len(of_row or ()) for of_row in images or [()] * num_rows)]
    offsets = {}
    for name, values in fields.items():
        is_per_token = isinstance(values, list) and bool(values) and isinstance(values[0], list)
        if name == "pixel_values" and "image_grid_thw" in fields:
            by_patch = [0, *itertools.accumulate(fields["image_grid_thw"].prod(-1).tolist())]
            offsets[name] = [by_patch[image] for image in by_image]
        elif is_per_token or len(values) != by_image[-1]:  # of images, padded to as many in each row
            offsets[name] = by_row
        else:
            offsets[name] = by_image
        if offsets[name][-1] != len(values):
            return None
    return offsets


def _fields_of(fields: dict[str, Any], offsets: dict[str, list[int]], rows: slice) -> dict[str, Any]:
    """The multimodal fields of some rows; without images there are none of theirs."""
    chunk = {name: values[offsets[name][rows.start] : offsets[name][rows.stop]] for name, values in fields.items()}
    return {name: values for name, values in chunk.items() if len(values)}
