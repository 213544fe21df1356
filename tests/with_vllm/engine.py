"""A model that vLLM runs on a CPU, and trainers that record what they ask of the engine and what they train."""

import functools
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import tiny
import torch
import vllm.model_executor.layers.utils
from peft import PeftModel
from recording import Judge, RecordingTrainer, assert_aligned
from transformers import set_seed
from vllm import LLM

from trl_pods import PODSGRPOConfig

# What TRL sets for vLLM: the next trainer of this process would take them for those of torchrun.
LAUNCH_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

start_engine = functools.cache(LLM)


def shared_engine(**arguments) -> LLM:
    """The engine of these arguments, in place of `vllm.LLM`; TRL gives it the weights before it generates."""
    llm = start_engine(**arguments)
    for name in LAUNCH_VARIABLES:
        os.environ.pop(name, None)
    return llm


def keep_linear_weights() -> None:
    """
    Make vLLM's CPU backend multiply by the weights that TRL writes.

    When it loads a model it packs linear weights into a layout of its own and drops the originals, since
    https://github.com/vllm-project/vllm/pull/24150 (September 2025) and still in 0.31. So what TRL loads later reaches
    nothing that is multiplied by. On a GPU nothing is packed.
    """

    def multiply_by_the_weights(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm = multiply_by_the_weights


def save_model(path: Path) -> str:
    """Write a tiny model that vLLM can run to a folder: it needs heads of 32 dimensions or more."""
    # Far enough from uniform for log-probs to tell completions apart.
    config = {"hidden_size": 128, "intermediate_size": 256, "num_key_value_heads": 4, "initializer_range": 0.1}
    return tiny.save_model(path, **config)


def vllm_arguments(output_dir, **overrides) -> dict:
    """16 rollouts of each of 2 prompts in a colocated engine, of which 4 are kept."""
    arguments = {
        "num_generations": 4,
        "num_rollouts": 16,
        "max_completion_length": 12,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_length": 128,
    }
    return tiny.default_arguments(output_dir, **arguments | overrides)


PATTERN = "[a-m]{4,8}"  # of structured outputs; an end of turn follows

# An evaluation after each step, of 2 completions of each of 4 prompts.
EVALUATION = {
    "eval_dataset": tiny.make_dataset(4),
    "num_generations_eval": 2,
    "per_device_eval_batch_size": 8,
    "eval_strategy": "steps",
    "eval_steps": 1,
}


@dataclass
class Rows:
    """Rows of each forward pass and of each generation, in order."""

    generated: list[int] = field(default_factory=list)
    without_gradient: list[int] = field(default_factory=list)  # for old and reference log-probs
    policy: list[int] = field(default_factory=list)


class VLLMTrainer(RecordingTrainer):
    """Records rows, completions before the selection, and how far weights move while rollouts are generated."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.num_rows = Rows()
        self.sampled: list[tuple[list, list, list]] = []  # prompts, completions and log-probs of all rollouts
        self.moved: list[dict[str, float]] = []  # for each generation, the largest change of each parameter

    def train(self, *args, **kwargs):
        set_seed(self.args.seed)  # the engine samples from torch's global generator, which its start-up moved
        return super().train(*args, **kwargs)

    def _generate(self, prompts):
        before = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        generated = super()._generate(prompts)
        after = dict(self.model.named_parameters())
        self.moved.append({name: (after[name] - before[name]).abs().max().item() for name in before})
        return generated

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        completion_ids, logprobs = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        self.num_rows.generated.append(len(prompt_ids))
        self.sampled.append((prompt_ids, completion_ids, logprobs))
        return completion_ids, logprobs

    def _get_per_token_logps_and_entropies(self, model, input_ids, *args, **kwargs):
        rows = self.num_rows.policy if torch.is_grad_enabled() else self.num_rows.without_gradient
        rows.append(len(input_ids))
        return super()._get_per_token_logps_and_entropies(model, input_ids, *args, **kwargs)


def make_trainer(model_path, reward_funcs, output_dir, **arguments) -> VLLMTrainer:
    """A trainer of the tiny dataset with [`vllm_arguments`]."""
    names = ("train_dataset", "eval_dataset", "peft_config", "rollout_func")
    others = {"train_dataset": tiny.make_dataset()} | {name: arguments.pop(name) for name in names if name in arguments}
    args = PODSGRPOConfig(**vllm_arguments(output_dir, **arguments))
    return VLLMTrainer(model=model_path, reward_funcs=reward_funcs, args=args, **others)


def assert_structured(model_path, output_dir, **arguments) -> None:
    """Check that with [`PATTERN`] all rollouts match it, nearly none without, and that rows stay whole."""

    def share_that_matches(name: str, pattern: str | None) -> float:
        trainer = make_trainer(
            model_path, Judge(), output_dir / name, vllm_structured_outputs_regex=pattern, **arguments
        )
        trainer.train()
        assert_aligned(trainer)
        texts = [tiny.make_tokenizer().decode(ids[:-1]) for _, completions, _ in trainer.sampled for ids in completions]
        return sum(re.fullmatch(PATTERN, text) is not None for text in texts) / len(texts)

    assert share_that_matches("structured", PATTERN) == 1
    assert share_that_matches("free", None) < 0.1


def engine_weight(trainer, name: str) -> torch.Tensor:
    """A weight that the colocated engine multiplies by."""
    engine = trainer.vllm_generation.llm.llm_engine
    return dict(engine.model_executor.driver_worker.model_runner.model.named_parameters())[name]


def trained_weight(trainer, name: str) -> torch.Tensor:
    """The weight of that name which the trainer trains, with its LoRA added if it has one."""
    if not isinstance(trainer.model, PeftModel):
        return trainer.model.get_parameter(name).detach()
    layer = trainer.model.get_submodule(f"base_model.model.{name.removesuffix('.weight')}")
    return (layer.base_layer.weight + layer.get_delta_weight("default")).detach()
