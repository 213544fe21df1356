"""
Sampling n rollouts per prompt and going on with m of them, as a mixin in front of TRL's `GRPOTrainer`.

Once a generation batch has been generated and scored, m of each prompt's n rollouts are selected, prompts whose rewards
do not differ are left out, and every per-row value is narrowed, in place, within `_generate`. The rest of TRL's code
goes on as if only these rows had been generated: padding, old and reference log-probs, importance ratios, advantages,
the denominators of the losses. So they cost what they cost for these rows, and all of TRL's options keep working
because TRL's code still does them.

Letters: Q prompts sampled per generation batch, P that the update counts, K that it computes; n rollouts sampled and m
kept per prompt, F reward functions, W processes. Q = P without `prompt_oversampling`.
"""

import functools
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader, Sampler

from ..checks.all_ranks import fail_together
from ..checks.batch_sizes import check_evaluation, prompts_per_generation, sampled_prompts
from ..checks.columns import check_dataset_prompts
from ..checks.training import check_training
from ..checks.trl_seam import Generated
from .completions_table import CompletionsTable
from .metrics import advantages_over_all, reward_metrics, selection_metrics
from .rows import add_extra_fields, columns_of, copies_for_rewards, dataset_images, keep_rows, replace_columns
from .selecting import RolloutSelection
from .selection import TRAINED, Selection
from .sizes import describe_batch, sized_for_rollouts
from .zero_variance import TOKENS_OF_MICRO_BATCH, row_weights, tokens_to_add

logger = logging.getLogger(__name__)


class DownSampling(RolloutSelection, CompletionsTable):
    """
    Samples `num_rollouts` rollouts per prompt and goes on with `num_generations` of them, where their rewards differ.

    Overrides `train` (checks, and says what a generation batch holds), `get_train_dataloader`, `_get_train_sampler` and
    `_get_dataloader` (n rows per prompt), `get_eval_dataloader` (checks sizes and prompts),
    `_generate_and_score_completions` (narrows what `_generate` returns; metrics and completions table over all
    rollouts), `_prepare_inputs` (random numbers as if all rows went on). `_generate` and `_calculate_rewards`
    are called as the instance has them, overrides in subclasses included. Evaluation is the host's.
    """

    def __init__(self, *, args, **kwargs):
        self.num_rollouts = args.num_rollouts
        self._num_prompts, self._num_counted = sampled_prompts(args), prompts_per_generation(args)
        self._random_state: torch.Tensor | None = None  # before the shuffle of a narrower batch
        self._is_reweighted = False  # the generation batch that is being prepared
        with sized_for_rollouts(args):
            super().__init__(args=args, **kwargs)
        self.num_generations = args.num_generations
        for table in ("rewards", "extra"):  # their columns take their length when first used, after this
            self._logs[table] = defaultdict(functools.partial(deque, maxlen=self._num_prompts * self.num_rollouts))

    def train(self, *args, **kwargs):
        check_training(self)
        if self.accelerator.is_main_process:
            logger.info(describe_batch(self.args, self.train_dataset, self._not_skipped))
        result = super().train(*args, **kwargs)
        if self.state.global_step == 0:
            raise ValueError(
                f"Nothing was trained: `train_dataset` gave fewer prompts than the {self._num_prompts} that one "
                "generation batch takes. Give more prompts, or make the generation batch smaller."
            )
        return result

    # The data: every prompt is drawn n times, in generation batches of Q n rows.

    def get_train_dataloader(self) -> DataLoader:
        with self._sampling():
            return super().get_train_dataloader()

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        check_evaluation(self.args)
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        dataset = {dataset: self.eval_dataset[dataset]} if isinstance(dataset, str) else dataset
        check_dataset_prompts("eval_dataset", dataset, self._tokenizer, with_rows=self.rollout_func is None)
        return super().get_eval_dataloader(eval_dataset)

    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler:
        with self._sampling():
            return super()._get_train_sampler(dataset)

    def _get_dataloader(self, *args, **kwargs) -> DataLoader:
        if kwargs.get("is_training"):  # the host counts the trained rows of this process
            trained = self._num_counted * self.args.num_generations
            kwargs["batch_size"] = kwargs["batch_size"] * self._num_prompts * self.num_rollouts // trained
        return super()._get_dataloader(*args, **kwargs)

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        """Show the host the sizes of what is sampled in place of what is trained."""
        sizes = self.num_generations, self.args.generation_batch_size
        self.num_generations = self.num_rollouts
        self.args.generation_batch_size = self._num_prompts * self.num_rollouts
        try:
            yield
        finally:
            self.num_generations, self.args.generation_batch_size = sizes

    # A generation batch: generate, score and select within `_generate`, then go on with the kept rows.

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            if self.log_completions:
                self._log_completion_extra("kept", [True] * len(inputs))
                self._log_completion_extra("trained", [False] * len(inputs))
            return super()._generate_and_score_completions(inputs)
        self._check_rows(len(inputs))
        rows = [dict(row) for row in inputs]  # copies, because they are narrowed and written into
        selections: list[Selection] = []
        generate, calculate_rewards = self._generate, self._calculate_rewards

        def generate_and_narrow(prompts: list) -> Generated:
            generated = self._generate_all(generate, rows, prompts)
            rewards = calculate_rewards(*copies_for_rewards(rows, prompts, generated))
            with self.measure("select"):
                selections.append(self._select(prompts, generated, rewards))
                if self.log_completions:
                    own = map(self._own_rows, (selections[0].is_kept, selections[0].is_trained))
                    self._log_roles(*(rows.tolist() for rows in own))
                return self._narrow(selections[0], rows, prompts, generated)

        def known_rewards(*args, **kwargs) -> torch.Tensor:
            return selections[0].trained_rewards_per_func.to(self.accelerator.device)

        with self._replaced(_generate=generate_and_narrow, _calculate_rewards=known_rewards):
            output = super()._generate_and_score_completions(rows)
        self._log_all_rollouts(selections[0], output)
        if len(self._counted(selections[0])) != len(selections[0].trained_prompts):
            self._reweight(selections[0], output)
        if len(selections[0].trained_prompts) < self._num_counted:
            self._random_state = torch.get_rng_state()
        return output

    def _check_rows(self, num_rows: int) -> None:
        found, expected = num_rows * self.accelerator.num_processes, self._num_prompts * self.num_rollouts
        if found != expected:
            raise ValueError(
                f"The dataloader gave {found} rows, but a generation batch takes {expected}: {self._num_prompts} "
                f"prompts, each `num_rollouts` ({self.num_rollouts}) times in a row. Where `get_train_dataloader`, "
                "`_get_dataloader` or `_get_train_sampler` is overridden, call `super()`."
            )

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        inputs = super()._prepare_inputs(generation_batch)
        if self._random_state is not None:
            num_rows = len(self._buffered_inputs[0]["advantages"]) * len(self._buffered_inputs)
            # The host has shuffled the rows, of which a single one draws nothing.
            if num_rows == 1 or not torch.equal(torch.get_rng_state(), self._random_state):
                torch.set_rng_state(self._random_state)
                torch.randperm(self._num_counted * self.num_generations // self.accelerator.num_processes)
            self._random_state = None
        if self._is_reweighted:
            self._is_reweighted = False
            if self.loss_type in TOKENS_OF_MICRO_BATCH:
                for batch in self._buffered_inputs:
                    mask = batch["completion_mask"] * batch.get("tool_mask", 1)
                    batch["advantages"] = batch["advantages"] * mask.sum()
        return inputs

    def _counted(self, selection: Selection) -> torch.Tensor:
        """Prompts whose rows are in the denominators of the loss."""
        if self.args.zero_variance == "drop":
            return (selection.roles == TRAINED).nonzero().flatten()
        return selection.counted_prompts

    def _reweight(self, selection: Selection, output: dict[str, Any]) -> None:
        """Have the rows that go on count for those that are counted, in every denominator."""
        counted = self._counted(selection)
        weights = self._own_rows(row_weights(selection, counted, self.loss_type, self._num_micro_batches))
        advantages = output["advantages"]  # of each row, or of each of its tokens
        output["advantages"] = advantages * weights.to(advantages).view(-1, *[1] * (advantages.dim() - 1))
        output["num_items_in_batch"] = output["num_items_in_batch"] + tokens_to_add(selection, counted)
        self._is_reweighted = True

    def _own_rows(self, values: torch.Tensor) -> torch.Tensor:
        """Of values of all rows, or of all that go on, those of this process."""
        return values.view(self.accelerator.num_processes, -1)[self.accelerator.process_index]

    @contextmanager
    def _replaced(self, **methods: Callable) -> Iterator[None]:
        """Put methods in the place of the instance's own, whoever has overridden those."""
        own = {name: self.__dict__[name] for name in methods if name in self.__dict__}
        self.__dict__.update(methods)
        try:
            yield
        finally:
            for name in methods:
                del self.__dict__[name]
            self.__dict__.update(own)

    def _generate_all(self, generate: Callable, rows: list[dict[str, Any]], prompts: list) -> Generated:
        with self._sampling():
            generated = Generated(*generate(prompts))
        if generated.images is None:  # the host would go back to those of all its rows
            generated = generated._replace(images=dataset_images(rows))
        with fail_together():
            add_extra_fields(rows, generated, columns_of(generated, len(prompts)))
        return generated

    def _narrow(self, selection: Selection, inputs: list, prompts: list, generated: Generated) -> Generated:
        """Narrow all that the host goes on with to this process's share of the kept rows."""
        lists: dict[str, list] = {"prompts": prompts, "inputs": inputs}
        if self.environments is not None:  # the environments themselves cannot be sent, and are not used from here on
            lists["environment names"] = self._batch_environments
        has_images = generated.images is not None and dataset_images(inputs) is not None
        narrowed = keep_rows(
            {**lists, **columns_of(generated, len(prompts))},
            selection.trained_rows,
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

    # Metrics and the completions table, which describe all n rollouts

    def _log_all_rollouts(self, selection: Selection, output: dict[str, Any]) -> None:
        if len(output["prompt_ids"]) * self.accelerator.num_processes != len(selection.trained_rows):
            raise RuntimeError("`GRPOTrainer` did not go on with the kept rows. Install a supported version of TRL.")
        weights, metrics = self.reward_weights.cpu(), self._metrics["train"]
        for name, value in reward_metrics(selection.rewards_per_func, weights, self.reward_func_names).items():
            metrics[name][-1] = value  # in place of the host's, over the kept rows
        for name, value in selection_metrics(selection, weights).items():
            metrics[name].append(value)
        advantages = self._advantages(selection)
        if advantages is not None:
            self._logs["advantages"].extend(advantages.tolist())  # after the host's, of which as many are shown
            output["advantages"] = self._own_rows(advantages).to(output["advantages"])
        if self.log_completions:
            self._unlogged = selection

    def _advantages(self, selection: Selection) -> torch.Tensor | None:
        """Advantages of the rows that go on, (K m,), where they are not the host's, which sees these rows alone."""
        rewards_per_func = selection.rewards_per_func
        if self.args.advantage_statistics == "kept":
            counted = self._counted(selection)
            if self.scale_rewards != "batch" or len(counted) == len(selection.trained_prompts):
                return None
            others = ~selection.among_all(selection.rows(counted))
            rewards_per_func = rewards_per_func.masked_fill(
                others.view_as(selection.loss_tokens).unsqueeze(-1), torch.nan
            )
        advantages = advantages_over_all(
            rewards_per_func,
            self.reward_weights.cpu(),
            scale_rewards=self.scale_rewards,
            aggregation=self.multi_objective_aggregation,
        )
        return advantages.flatten()[selection.trained_rows]
