"""
`PODSGRPOTrainer`: sample n rollouts per prompt, train on m of them.

How it departs from `GRPOTrainer`. Once a generation batch has been generated and scored, the trainer selects m of each
prompt's n rollouts and narrows every per-row value, in place, inside `_generate`. The rest of TRL's code goes on as if
only the kept rows had been generated: padding, old and reference log-probs, importance ratios, advantages, the
denominators of the losses. So they cost what they cost for m rows, and all of TRL's options keep working because TRL's
code still does them. Evaluation is not down-sampled, and with n = m nothing is changed at all.

Letters: P prompts per generation batch, n rollouts sampled and m kept per prompt, F reward functions, W processes.
"""

import functools
import logging
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast, gather_object
from datasets import Dataset
from torch.utils.data import DataLoader, Sampler
from trl import GRPOTrainer
from trl.trainer.utils import get_config_model_id

from .checks.all_ranks import fail_together
from .checks.batch_sizes import check_dataset, check_evaluation, prompts_per_generation
from .checks.learning_signal import LearningSignal
from .checks.reward_functions import checked_rewards
from .checks.rollout_func import checked_rollouts
from .checks.trl_seam import Generated, check_trl
from .config import PODSGRPOConfig, with_rollouts
from .downsampling.completions_table import check_columns, log_all_rollouts, tolerate_table_errors, without_empty_table
from .downsampling.metrics import advantages_over_all, reward_metrics, selection_metrics, weighted_sum
from .downsampling.repeated_hooks import drop_repeated_hooks
from .downsampling.rows import add_extra_fields, columns_of, dataset_images, keep_rows, replace_columns
from .downsampling.selection import Selection, seeded_generator, select
from .downsampling.sizes import describe_batch, sized_for_rollouts
from .resume.checkpoints import checkpoint_folder, checkpoint_to_resume_from, warn_of_checkpoints
from .resume.state import advance_sampler, load_state, save_state
from .runs.log import read_state
from .runs.model_card import PAPER, complete_model_card
from .runs.record import RunRecordCallback
from .strategies.registry import get_strategy
from .timing import PhaseClock, StepClockCallback

logger = logging.getLogger(__name__)


class PODSGRPOTrainer(GRPOTrainer):
    """
    Trainer for GRPO with policy optimisation on down-sampled rollouts (PODS, arXiv 2504.13818).

    It overrides `_generate` (select and narrow), `_generate_and_score_completions` (metrics and completions table over
    all rollouts), `_calculate_rewards` (check rewards, and hand back known ones), the sampler and the data loader (n
    rows per prompt), saves in checkpoints what exact resuming needs, times the phases of a step, and completes the
    model card. All else is inherited from [`~trl.GRPOTrainer`], whose arguments it takes.

    Args:
        args ([`PODSGRPOConfig`] or [`~trl.GRPOConfig`], *optional*):
            Configuration. A plain `GRPOConfig`, or none, gets the defaults of the parameters that `PODSGRPOConfig`
            adds.
        *other and **kwargs:
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
    rollout_func: Any

    @functools.wraps(GRPOTrainer.__init__)  # type: ignore[misc]
    def __init__(self, model, reward_funcs=None, args=None, train_dataset=None, *other, **kwargs):
        check_trl()
        if args is None:
            name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = PODSGRPOConfig(f"{name.split('/')[-1]}-PODS-GRPO")
        args = with_rollouts(args)
        check_dataset(args, train_dataset)
        self._num_prompts = prompts_per_generation(args)
        self.num_rollouts = args.num_rollouts
        self.clock = PhaseClock()
        self._inputs: list[dict[str, Any]] | None = None  # rows of the generation batch in progress
        self._train_sampler: Sampler | None = None  # set once it is asked for, which an iterable dataset is not
        self._selection: Selection | None = None  # set once its kept rows are known
        self._selections_at = (-1, 0)  # optimizer step, and selections made at it
        self._warned_of: set[str] = set()  # reward functions that gave an infinite reward
        self._learning_signal = LearningSignal(args)

        with sized_for_rollouts(args):
            super().__init__(model, reward_funcs, args, train_dataset, *other, **kwargs)
        self.num_generations = args.num_generations
        if self.rollout_func is not None:
            self.rollout_func = checked_rollouts(self.rollout_func)
        for table in ("rewards", "extra"):  # their columns take their length when first used, after this
            self._logs[table] = defaultdict(functools.partial(deque, maxlen=self._num_prompts * self.num_rollouts))
        self._strategy = get_strategy(args.down_sampling)
        self._selection_reward = _index_of(args.selection_reward, self.reward_func_names)
        self._stop_tokens = _stop_tokens(self.model.generation_config, self._tokenizer)
        self.add_callback(StepClockCallback(self.clock, self._metrics["train"]))
        self.add_callback(RunRecordCallback(self))

    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        """
        Train as [`~transformers.Trainer.train`] does, after one line (level INFO) on what a generation batch holds.

        With `resume_from_checkpoint=True` it goes on from the last checkpoint that is complete. One that has been
        trained to the end is not trained on.

        Raises:
            ValueError: A dataset without a length gave too few prompts for one generation batch, or there is no
                checkpoint to resume from, or it is not complete, or does not fit.
        """
        resumed_at = None
        if resume_from_checkpoint:
            resume_from_checkpoint = self._checkpoint_of_all(resume_from_checkpoint)
            resumed_at = read_state(resume_from_checkpoint).get("global_step")  # now, because training may remove it
        elif self.accelerator.is_main_process:
            warn_of_checkpoints(self.args.output_dir)
        if self.accelerator.is_main_process:
            logger.info(describe_batch(self.args, self.train_dataset))
        result = super().train(resume_from_checkpoint, *args, **kwargs)
        if self.state.global_step == resumed_at and self.accelerator.is_main_process:
            logger.info(
                f"Nothing was left to train: {str(resume_from_checkpoint)!r} is the end of its training. Raise "
                "`max_steps`, or else `num_train_epochs`, to train on."
            )
        if self.state.global_step == 0:
            raise ValueError(
                f"Nothing was trained: `train_dataset` gave fewer prompts than the {self._num_prompts} that one "
                "generation batch takes. Give more prompts, or make the generation batch smaller."
            )
        return result

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

    def get_batch_samples(self, *args, **kwargs):
        # transformers looks whether it has come to the end only after a step.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return [], None
        return super().get_batch_samples(*args, **kwargs)

    def _save_checkpoint(self, model, trial) -> None:
        if not self.args.save_only_model:
            with fail_together():
                save_state(self, checkpoint_folder(self._get_output_dir(trial=trial), self.state.global_step))
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            advance_sampler(self._train_sampler, int(self.state.epoch or 0))
            with fail_together():
                load_state(self, checkpoint)

    def create_model_card(self, model_name: str | None = None, *args, **kwargs) -> None:
        model_name = model_name or Path(self.args.hub_model_id or self.args.output_dir).name
        super().create_model_card(model_name, *args, **kwargs)
        if self.is_world_process_zero():
            complete_model_card(Path(self.args.output_dir) / "README.md", model_name, self)

    # The data: every prompt is drawn n times, in generation batches of P n rows.

    def get_train_dataloader(self) -> DataLoader:
        with self._sampling():
            return super().get_train_dataloader()

    def get_eval_dataloader(self, *args, **kwargs) -> DataLoader:
        check_evaluation(self.args)
        return super().get_eval_dataloader(*args, **kwargs)

    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler:
        with self._sampling():
            self._train_sampler = super()._get_train_sampler(dataset)
        return self._train_sampler

    def _get_dataloader(self, *args, **kwargs) -> DataLoader:
        if kwargs.get("is_training"):  # the parent counts the trained rows of this process
            kwargs["batch_size"] = kwargs["batch_size"] * self.num_rollouts // self.args.num_generations
        return super()._get_dataloader(*args, **kwargs)

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        """Show the parent the sizes of what is sampled in place of what is trained."""
        sizes = self.num_generations, self.args.generation_batch_size
        self.num_generations = self.num_rollouts
        self.args.generation_batch_size = self._num_prompts * self.num_rollouts
        try:
            yield
        finally:
            self.num_generations, self.args.generation_batch_size = sizes

    # A generation batch: generate, score and select within `_generate`, then go on with the kept rows.

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        drop_repeated_hooks(self.model)
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        with self._measure("prepare"):
            if self.num_rollouts == self.num_generations:
                output = super()._generate_and_score_completions(inputs)
            else:
                self._inputs = [dict(row) for row in inputs]  # copies, because they are narrowed and written into
                try:
                    output = self._with_all_rollouts_logged(super()._generate_and_score_completions(self._inputs))
                finally:
                    self._inputs = self._selection = None
        if self.accelerator.is_main_process:
            self._learning_signal.see(self._metrics["train"])
        return output

    def _generate(self, prompts: list) -> tuple:
        inputs = self._inputs
        if inputs is None:  # evaluation, or n = m
            if self.log_completions:
                self._log_completion_extra("kept", [True] * len(prompts))
            with self._measure("generate"):
                return super()._generate(prompts)
        with self._measure("generate"), self._sampling():
            generated = Generated(*super()._generate(prompts))
        if generated.images is None:  # the parent would go back to those of all its rows
            generated = generated._replace(images=dataset_images(inputs))
        with fail_together():
            add_extra_fields(inputs, generated, columns_of(generated, len(prompts)))
        rewards_per_func = self._score(inputs, prompts, generated.completions, generated.completion_ids)
        with self._measure("select"):
            self._selection = self._select(prompts, generated, rewards_per_func)
            self._log_kept_column(self._selection, len(prompts))
            return self._narrow(self._selection, inputs, prompts, generated)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list) -> torch.Tensor:
        if self._selection is not None:  # the parent asks for those of the kept rows
            return self._selection.kept_rewards_per_func.to(self.accelerator.device)
        return self._score(inputs, prompts, completions, completion_ids_list)

    def _score(self, inputs, prompts, completions, completion_ids_list) -> torch.Tensor:
        """Let the parent calculate rewards, and check what reward functions have given."""
        with self._measure("reward"), checked_rewards(self):
            rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self.log_completions:
            with fail_together():
                check_columns(self._pending_extra_logs, len(prompts))
        return rewards_per_func

    def _select(self, prompts: list, generated: Generated, rewards_per_func: torch.Tensor) -> Selection:
        """Choose the rollouts to keep: on the main process, and for all."""
        shape = (self._num_prompts, self.num_rollouts)
        rewards_per_func = self._without_infinities(rewards_per_func.cpu()).view(*shape, -1)
        lengths, truncated = (column.view(shape) for column in self._gathered_lengths(generated).unbind(dim=1))
        context = {
            "rewards_per_func": rewards_per_func,
            "completion_lengths": lengths,
            "truncated": truncated.bool(),
            "generator": self._selection_generator(),
            "step": self.state.global_step,
        }
        kept = torch.empty(self._num_prompts, self.num_generations, dtype=torch.long)
        with fail_together():
            if self.accelerator.is_main_process:
                kept = self._chosen(context)
        # One decides: another might see other floats, or have a rule with a state or a random generator of its own.
        kept = broadcast(kept.to(self.accelerator.device)).cpu()
        return Selection(prompts[:], generated.completions, generated.images, rewards_per_func, lengths, kept)

    def _chosen(self, context: dict[str, Any]) -> torch.Tensor:
        """What the rule keeps, (P, m), by the rewards that it is to see."""
        if self._selection_reward is None:
            rewards = weighted_sum(context["rewards_per_func"], self.reward_weights.cpu())
        else:
            rewards = context["rewards_per_func"][..., self._selection_reward]
        if self.args.exclude_truncated:
            rewards = rewards.masked_fill(context["truncated"], torch.nan)
        return select(
            self.args.down_sampling,
            self._strategy,
            rewards,
            self.num_generations,
            kwargs=self.args.down_sampling_kwargs or {},
            context=context,
        )

    def _narrow(self, selection: Selection, inputs: list, prompts: list, generated: Generated) -> Generated:
        """Narrow all that the parent goes on with to this process's share of the kept rows."""
        lists: dict[str, list] = {"prompts": prompts, "inputs": inputs}
        if self.environments is not None:  # the environments themselves cannot be sent, and are not used from here on
            lists["environment names"] = self._batch_environments
        has_images = generated.images is not None and dataset_images(inputs) is not None
        narrowed = keep_rows(
            {**lists, **columns_of(generated, len(prompts))},
            selection.kept_rows,
            num_rows=len(prompts),
            process_index=self.accelerator.process_index,
            num_processes=self.accelerator.num_processes,
        )
        for name, values in lists.items():
            values[:] = narrowed.pop(name)
        generated = replace_columns(generated, narrowed)
        if not has_images and not any(generated.images or []):  # those that tools returned may all be dropped
            generated = generated._replace(images=None)
        return generated

    def _without_infinities(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        for i in rewards_per_func.isinf().any(dim=0).nonzero().flatten().tolist():
            name = self.reward_func_names[i]
            if name not in self._warned_of and self.accelerator.is_main_process:
                logger.warning(
                    f"The reward function {name!r} gave an infinite reward at step {self.state.global_step}, or one "
                    "too large for float32. Such rewards count as not given, as `None` does; return finite numbers."
                )
            self._warned_of.add(name)
        return rewards_per_func.masked_fill(rewards_per_func.isinf(), torch.nan)

    def _gathered_lengths(self, generated: Generated) -> torch.Tensor:
        """Tokens that the model generated, and whether the rollout was cut, of all processes: (P n, 2)."""
        lengths = map(len, generated.completion_ids) if generated.tool_mask is None else map(sum, generated.tool_mask)
        truncated = (ids[-1] not in self._stop_tokens for ids in generated.completion_ids)
        rows = torch.tensor(list(zip(lengths, truncated, strict=True)), device=self.accelerator.device)
        return self.accelerator.gather(rows.long()).cpu()

    def _selection_generator(self) -> torch.Generator:
        # A step may see several generation batches; a resumed run must count them alike.
        step = self.state.global_step
        self._selections_at = (step, self._selections_at[1] + 1 if self._selections_at[0] == step else 0)
        return seeded_generator(self.args.seed, *self._selections_at)

    # Metrics and the completions table, which describe all n rollouts

    def _with_all_rollouts_logged(self, output: dict[str, Any]) -> dict[str, Any]:
        selection, num_trained = self._selection, self.args.per_device_train_batch_size * self.args.steps_per_generation
        if selection is None or len(output["prompt_ids"]) != num_trained:
            raise RuntimeError("`GRPOTrainer` did not go on with the kept rows. Install a supported version of TRL.")
        weights, metrics = self.reward_weights.cpu(), self._metrics["train"]
        for name, value in reward_metrics(selection.rewards_per_func, weights, self.reward_func_names).items():
            metrics[name][-1] = value  # in place of the parent's, over the kept rows
        rewards = weighted_sum(selection.rewards_per_func, weights)
        for name, value in selection_metrics(rewards, selection.kept, selection.completion_lengths).items():
            metrics[name].append(value)
        if self.args.advantage_statistics == "all":
            output["advantages"] = self._advantages_over_all(selection).to(output["advantages"])
        if self.log_completions:
            log_all_rollouts(
                self._logs, selection, self.reward_func_names, with_images=self._is_vlm and self.log_multimodal
            )
        return output

    def _advantages_over_all(self, selection: Selection) -> torch.Tensor:
        """Advantages of this process's kept rows, (P m / W,); also put in place of the parent's in the table."""
        advantages = advantages_over_all(
            selection.rewards_per_func,
            self.reward_weights.cpu(),
            scale_rewards=self.scale_rewards,
            aggregation=self.multi_objective_aggregation,
        )
        kept = advantages.gather(1, selection.kept).flatten()
        self._logs["advantages"].extend(kept.tolist())
        return kept.view(self.accelerator.num_processes, -1)[self.accelerator.process_index]

    def _log_kept_column(self, selection: Selection, num_rows: int) -> None:
        """Add the column `kept` and give all processes the same columns, for the parent to log with all n rollouts."""
        if not self.log_completions:
            return
        first = self.accelerator.process_index * num_rows
        pending = {**self._pending_extra_logs, "kept": selection.is_kept[first : first + num_rows].tolist()}
        self._logs["extra"].clear()
        self._pending_extra_logs.clear()
        for name in sorted(set(gather_object(list(pending)))):
            self._log_completion_extra(name, pending.get(name, [None] * num_rows))

    def log(self, logs: dict[str, float], *args, **kwargs) -> None:
        with tolerate_table_errors(self), without_empty_table(self):
            super().log(logs, *args, **kwargs)

    # Time spent in each phase

    def training_step(self, *args, **kwargs) -> torch.Tensor:
        with self.clock.measure("update"):
            return super().training_step(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        # The forward passes of the loss belong to the update; those before it have no gradient.
        with nullcontext() if torch.is_grad_enabled() else self._measure("logps"):
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    def _measure(self, phase: str) -> AbstractContextManager[None]:
        return self.clock.measure(phase) if self.model.training else nullcontext()


def _index_of(reward_name: str | None, names: list[str]) -> int | None:
    if reward_name is None:
        return None
    if names.count(reward_name) != 1:
        raise ValueError(
            f"`selection_reward` is {reward_name!r}, but it must name exactly one reward function. The reward "
            f"functions are {names}."
        )
    return names.index(reward_name)


def _stop_tokens(generation_config: Any, tokenizer: Any) -> set[int | None]:
    """Tokens that end a complete rollout, as TRL counts them from 1.11 on: all that the model or tokenizer declare."""
    declared = generation_config.eos_token_id
    return {*(declared if isinstance(declared, list) else [declared]), tokenizer.eos_token_id, tokenizer.pad_token_id}
