"""
Models that record the rows of each call. Run under torchrun by test_chunks.py: trains and writes what each process saw.

    python -m torch.distributed.run --nproc_per_node 2 tests/chunks_worker.py MODEL_PATH OUTPUT_DIR
"""

import json
import sys
from pathlib import Path

import tiny
import torch
from recording import RecordingTrainer
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from trl_pods import PODSGRPOConfig
from trl_pods.cli.launch import end_process_group


class RecordingModel(LlamaForCausalLM):
    """Records how many rows are generated in each call."""

    generated: list[int]

    def generate(self, input_ids, **kwargs):
        self.generated.append(len(input_ids))
        return super().generate(input_ids=input_ids, **kwargs)

    def generate_batch(self, inputs, **kwargs):
        self.generated.append(len(inputs))
        return super().generate_batch(inputs, **kwargs)


class RecordingRewardModel(LlamaForSequenceClassification):
    """Records how many rows are scored in each call."""

    scored: list[int]

    def forward(self, input_ids, **kwargs):
        self.scored.append(len(input_ids))
        return super().forward(input_ids=input_ids, **kwargs)


class RecordingRollouts(RecordingTrainer):
    """Records what is generated of each prompt, as a user's override sees it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.sampled: list[tuple] = []

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        generated = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        self.sampled.append((prompt_ids, generated[0]))
        return generated


def make_model(model_path: str) -> RecordingModel:
    model = RecordingModel.from_pretrained(model_path)
    model.generated = []
    return model


def make_reward_model(model_path: str) -> RecordingRewardModel:
    torch.manual_seed(1)
    model = RecordingRewardModel(LlamaConfig.from_pretrained(model_path, num_labels=1)).eval()
    model.scored = []
    return model


def make_trainer(model_path: str, output_dir: Path, *, eval_dataset=None, **arguments) -> RecordingRollouts:
    """A trainer of both models, which samples 8 rollouts of each of 2 prompts and keeps 4."""
    reward_model = make_reward_model(model_path)
    trainer = RecordingRollouts(
        model=make_model(model_path),
        reward_funcs=reward_model,
        args=PODSGRPOConfig(**tiny.default_arguments(output_dir, **{"num_rollouts": 8} | arguments)),
        train_dataset=tiny.make_dataset(),
        eval_dataset=eval_dataset,
        processing_class=tiny.make_tokenizer(),
        reward_processing_classes=tiny.make_tokenizer(),
    )
    trainer.reward_model = reward_model
    return trainer


def main(model_path: str, output_dir: str) -> None:
    trainer = make_trainer(
        *(model_path, Path(output_dir)),
        per_device_train_batch_size=4,
        rollout_batch_size=3,
        generation_kwargs={"do_sample": False},
        zero_variance="train",
        max_steps=1,
        ddp_backend="gloo",
        ddp_timeout=60,
    )
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    saw = {"generated": model.generated, "scored": trainer.reward_model.scored, "sampled": trainer.sampled}
    (Path(output_dir) / f"{trainer.accelerator.process_index}.json").write_text(json.dumps(saw))


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process_group()
