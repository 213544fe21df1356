"""
`PODSGRPOTrainer`: sample n rollouts per prompt, train on m of them.

How it departs from `GRPOTrainer`: `downsampling/mixin.py` selects and narrows, `resume/exact_resume.py` completes
checkpoints, `checks/reward_functions.py` checks what user code returns, `downsampling/chunks.py` bounds the memory of
sampling, `timing.py` times the phases of a step.
"""

import functools
import inspect
import logging
import weakref
from pathlib import Path
from typing import Any

import torch
from trl import GRPOTrainer
from trl.trainer.utils import get_config_model_id

from .checks.learning_signal import LearningSignal
from .checks.models import check_model_names
from .checks.options import check_choices, check_generation
from .checks.repeated_hooks import drop_repeated_hooks
from .checks.reward_functions import CheckedRewards
from .checks.trl_seam import check_calls_super, check_trl
from .config import PODSGRPOConfig, with_rollouts
from .downsampling.chunks import InChunks
from .downsampling.masked_rows import MaskedRows
from .downsampling.mixin import DownSampling
from .resume.exact_resume import ExactResume
from .runs.assessment import assess
from .runs.console import shown_on_console
from .runs.model_card import PAPER, complete_model_card
from .runs.record import RunRecord, RunRecordCallback
from .timing import PhaseTimes

logger = logging.getLogger(__name__)


class PODSGRPOTrainer(ExactResume, DownSampling, MaskedRows, CheckedRewards, InChunks, PhaseTimes, GRPOTrainer):
    """
    Trainer for GRPO with policy optimisation on down-sampled rollouts (PODS, arXiv 2504.13818).

    Each mixin names the methods that it overrides; this class overrides `_generate_and_score_completions` and
    `training_step` (warnings of a training that cannot learn), `train` (what it logs is shown in a script, and what
    PODS saved) and `create_model_card`. All else is inherited from [`~trl.GRPOTrainer`], whose arguments it takes. In
    front of a subclass of it, as in `class PODSGMPOTrainer(PODSGRPOTrainer, GMPOTrainer)`, it down-samples for that
    one.

    Args:
        args ([`PODSGRPOConfig`] or [`~trl.GRPOConfig`], *optional*):
            Configuration. A plain `GRPOConfig`, or none, gets the defaults of the parameters that `PODSGRPOConfig`
            adds.
        *positional and **keywords:
            All other arguments of [`~trl.GRPOTrainer`].

    Raises:
        ImportError: The installed TRL is not supported.
        ValueError: The configuration does not fit the data, the rewards or the number of processes.

    Example:

    ```python
    from trl_pods import PODSGRPOConfig, PODSGRPOTrainer

    trainer = PODSGRPOTrainer(
        model="Qwen/Qwen2.5-0.5B-Instruct",
        reward_funcs=accuracy_reward,
        args=PODSGRPOConfig(num_rollouts=64, num_generations=16),
        train_dataset=dataset,
    )
    trainer.train()
    ```
    """

    _tag_names = ["trl", "grpo", "pods"]
    _name = "PODS-GRPO"
    _paper = PAPER

    def __init_subclass__(cls, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        check_calls_super(cls)

    @functools.wraps(GRPOTrainer.__init__)  # type: ignore[misc]
    def __init__(self, *positional, **keywords):
        check_trl()
        arguments = inspect.signature(GRPOTrainer.__init__).bind(self, *positional, **keywords).arguments
        del arguments["self"]
        args, model = arguments.get("args"), arguments["model"]
        if args is None:
            name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = PODSGRPOConfig(f"{name.split('/')[-1]}-PODS-GRPO")
        arguments["args"] = args = with_rollouts(args)
        check_model_names(arguments)
        check_choices(args, type(self))
        check_generation(args, rollout_func=arguments.get("rollout_func"))
        self._learning_signal = LearningSignal(args)
        super().__init__(**arguments)
        self.add_callback(RunRecordCallback(weakref.proxy(self)))  # else `del` would not free the trainer

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        drop_repeated_hooks(self.model)
        output = super()._generate_and_score_completions(inputs)
        if self.model.training and self.accelerator.is_main_process:
            self._learning_signal.see(self._metrics["train"])
        return output

    def training_step(self, *args, **kwargs) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        if self.accelerator.is_main_process:
            self._learning_signal.see_update(self._metrics["train"])
        return loss

    def train(self, *args, **kwargs):
        with shown_on_console():
            result = super().train(*args, **kwargs)
            if self.is_world_process_zero():
                for sentence in assess(self.state.log_history, RunRecord.of(self)):
                    logger.info(sentence)
        return result

    def create_model_card(self, model_name: str | None = None, *args, **kwargs) -> None:
        model_name = model_name or Path(self.args.hub_model_id or self.args.output_dir).name
        super().create_model_card(model_name, *args, **kwargs)
        if self.is_world_process_zero():
            complete_model_card(Path(self.args.output_dir) / "README.md", model_name, self)
