"""Counting the trained rows that the loss masks whole, as a mixin in front of TRL's `GRPOTrainer`."""

from typing import Any

import torch

from ..checks.trl_seam import Host

FACTORS = ("tool_mask", "importance_sampling_ratio")  # of the loss, beside the mask of the completion


class MaskedRows(Host):
    """
    Logs `pods/frac_rows_masked`, once per micro-batch: the share of its rows of which the loss has no token.

    Rows are masked as truncated (`mask_truncated_completions`), by the importance ratio to vLLM
    (`vllm_importance_sampling_mode`) or as off-policy (`off_policy_mask_threshold`).

    Overrides `_prepare_inputs` and `get_off_policy_mask`, which see the masks, and `training_step`, which logs.
    """

    _is_masked: torch.Tensor  # rows of the micro-batch, (B,)

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        inputs = super()._prepare_inputs(generation_batch)
        mask = inputs["completion_mask"]
        for name in FACTORS:
            if inputs.get(name) is not None:
                mask = mask * inputs[name]
        self._is_masked = (mask == 0).all(dim=1)
        return inputs

    def get_off_policy_mask(self, *args, **kwargs) -> torch.Tensor:
        mask = super().get_off_policy_mask(*args, **kwargs)
        self._is_masked = self._is_masked | (mask == 0).all(dim=1)
        return mask

    def training_step(self, *args, **kwargs) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        frac = self.accelerator.gather(self._is_masked.float()).mean().item()
        self._metrics["train"]["pods/frac_rows_masked"].append(frac)
        return loss
