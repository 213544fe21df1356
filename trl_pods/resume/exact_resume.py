"""Resuming exactly, at any step, as a mixin in front of TRL's `GRPOTrainer`."""

import logging

from accelerate.utils import gather_object
from datasets import Dataset
from torch.utils.data import Sampler

from ..checks.all_ranks import fail_together
from ..downsampling.completions_table import CompletionsTable
from ..runs.log import read_state
from .checkpoints import (
    checkpoint_folder,
    checkpoint_to_resume_from,
    last_complete_checkpoint,
    warn_of_checkpoints,
)
from .state import advance_sampler, load_state, save_state

logger = logging.getLogger(__name__)


class ExactResume(CompletionsTable):
    """
    Saves in checkpoints what TRL leaves out, and resumes from them as if the run had not been stopped.

    Overrides `train` (finds the checkpoint), `get_batch_samples` (a finished run is not trained on), `_save_checkpoint`
    and `_load_optimizer_and_scheduler` (the state), `_get_train_sampler` (remembers the sampler, to advance it).
    """

    how_to_resume = "call `train(resume_from_checkpoint=True)`"  # said after Ctrl-C

    def __init__(self, **kwargs):
        self._train_sampler: Sampler | None = None  # set once it is asked for, which an iterable dataset is not
        super().__init__(**kwargs)

    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        """
        Train as [`~transformers.Trainer.train`] does; `resume_from_checkpoint=True` means the last complete checkpoint.

        Raises:
            ValueError: There is no checkpoint to resume from, or it is not complete, or does not fit.
        """
        resumed_at = None
        if resume_from_checkpoint:
            resume_from_checkpoint = self._checkpoint_of_all(resume_from_checkpoint)
            resumed_at = read_state(resume_from_checkpoint).get("global_step")  # now, because training may remove it
            if self.accelerator.is_main_process:
                logger.info(f"Resuming after step {resumed_at}, from {resume_from_checkpoint}.")
        else:
            self._step, self._buffered_inputs = 0, None  # of an earlier training with this trainer
            if self.accelerator.is_main_process:
                warn_of_checkpoints(self.args.output_dir)
        try:
            result = super().train(resume_from_checkpoint, *args, **kwargs)
        except KeyboardInterrupt:
            if self.is_world_process_zero():
                self._say_interrupted()
            raise
        if self.state.global_step == resumed_at and self.accelerator.is_main_process:
            logger.info(
                f"Nothing was left to train: {str(resume_from_checkpoint)!r} is the end of its training. Raise "
                "`max_steps`, or else `num_train_epochs`, to train on."
            )
        return result

    def get_batch_samples(self, *args, **kwargs):
        # transformers looks whether it has come to the end only after a step.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return [], None
        return super().get_batch_samples(*args, **kwargs)

    def _save_checkpoint(self, model, trial) -> None:
        if not self.args.save_only_model:
            self.fill_table()
            with fail_together():
                save_state(self, checkpoint_folder(self._get_output_dir(trial=trial), self.state.global_step))
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            advance_sampler(self._train_sampler, int(self.state.epoch or 0))
            with fail_together():
                load_state(self, checkpoint)

    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler:
        self._train_sampler = super()._get_train_sampler(dataset)
        return self._train_sampler

    def _say_interrupted(self) -> None:
        last = last_complete_checkpoint(self.args.output_dir)
        logger.warning(  # on a new line, after the progress bar
            f"\nInterrupted at step {self.state.global_step} of {self.state.max_steps}. "
            + (
                f"To resume from {last}, {self.how_to_resume}."
                if last
                else "No checkpoint was saved to resume from. Set `save_steps` for that."
            )
        )

    def _checkpoint_of_all(self, wanted: str | bool) -> str:
        with fail_together():
            found = checkpoint_to_resume_from(wanted, self.args.output_dir)
        of_processes = gather_object([found])
        if len(set(of_processes)) > 1:  # of folders that are not shared
            raise ValueError(
                f"`resume_from_checkpoint` means another checkpoint on each process: {of_processes}. Share "
                "`output_dir` between them, or name a checkpoint that all have."
            )
        return found
