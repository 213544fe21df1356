"""Chunks: `generate` and reward models take at most `rollout_batch_size` rows of a process at once, in training."""

import json
from pathlib import Path

import commands
import pytest
import tiny
import torch
from chunks_worker import make_model, make_reward_model, make_trainer
from recording import assert_aligned

from trl_pods.downsampling.chunks import RewardModelInChunks, row_offsets

CHUNKS = [(None, [8, 8]), (3, [3, 3, 3, 3, 3, 1]), (16, [16]), (100, [16])]


@pytest.mark.parametrize(("rollout_batch_size", "calls"), CHUNKS)
def test_case_114_generate_and_a_reward_model_take_at_most_so_many_rows(
    rollout_batch_size, calls, model_path, tmp_path
):
    trainer = make_trainer(model_path, tmp_path, rollout_batch_size=rollout_batch_size)
    trainer.train()
    assert trainer.model.generated == trainer.reward_model.scored == calls * 2
    assert [len(prompt_ids) for prompt_ids, _ in trainer.sampled] == [16, 16]

    def reward_of(row):
        tokenizer = tiny.make_tokenizer()
        text = f"State the final answer {row['number']}" + tokenizer.decode(row["completion"], skip_special_tokens=True)
        with torch.no_grad():
            return trainer.reward_model(**tokenizer(text, return_tensors="pt")).logits.item()

    assert_aligned(trainer, reward_of=reward_of)


def test_case_114_with_n_equal_m_all_rows_are_taken_at_once(model_path, tmp_path):
    sizes = {"per_device_train_batch_size": 2, "steps_per_generation": 4, "num_rollouts": 4}
    trainer = make_trainer(model_path, tmp_path, **sizes, gradient_accumulation_steps=4)
    trainer.train()
    assert trainer.model.generated == trainer.reward_model.scored == [8, 8]


def test_evaluation_takes_all_rows_at_once(model_path, tmp_path):
    arguments = {"rollout_batch_size": 3, "per_device_eval_batch_size": 8, "eval_dataset": tiny.make_dataset(2)}
    trainer = make_trainer(model_path, tmp_path, **arguments)
    trainer.evaluate()
    assert trainer.model.generated == trainer.reward_model.scored == [8]


@pytest.mark.long
def test_continuous_batching_takes_all_rows_at_once(model_path, tmp_path):
    trainer = make_trainer(model_path, tmp_path, use_transformers_continuous_batching=True, rollout_batch_size=3)
    trainer.train()
    assert trainer.model.generated == [16, 16]


def greedy(model_path: str, prompt_ids: list[int]) -> list[int]:
    """What the model generates of one prompt alone."""
    ids = make_model(model_path).generate(torch.tensor([prompt_ids]), do_sample=False, max_new_tokens=6)[0]
    return ids[len(prompt_ids) :].tolist()


def assert_of_their_prompts(model_path: str, sampled: list) -> None:
    for prompt_ids, completion_ids in sampled:
        assert len({tuple(ids) for ids in completion_ids}) > 1, "all are alike, so nothing was checked"
        assert [greedy(model_path, prompt) for prompt in prompt_ids] == completion_ids


def test_every_rollout_belongs_to_its_prompt(model_path, tmp_path):
    arguments = {"per_device_train_batch_size": 16, "zero_variance": "train", "max_steps": 1}
    trainer = make_trainer(
        model_path, tmp_path, rollout_batch_size=3, generation_kwargs={"do_sample": False}, **arguments
    )
    trainer.train()
    assert len(trainer.model.generated) == 11
    assert_of_their_prompts(model_path, trainer.sampled)


@pytest.mark.long
def test_two_processes_generate_and_score_equally_often(model_path, tmp_path):
    commands.torchrun(Path(__file__).with_name("chunks_worker.py"), model_path, tmp_path)
    for rank in range(2):
        saw = json.loads((tmp_path / f"{rank}.json").read_text())
        assert saw["generated"] == saw["scored"] == [3, 3, 2]
        assert [greedy(model_path, prompt) for prompt in saw["sampled"][0][0]] == saw["sampled"][0][1]


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_reward_model_in_chunks_gives_what_it_gives_in_one_piece(size, model_path):
    model, tokenizer = make_reward_model(model_path), tiny.make_tokenizer()
    inputs = tokenizer([f"answer {i}" * (i + 1) for i in range(7)], return_tensors="pt", padding=True)
    in_chunks = RewardModelInChunks(model, lambda: lambda rows: [slice(i, i + size) for i in range(0, rows, size)])
    with torch.inference_mode():
        torch.testing.assert_close(in_chunks(**inputs).logits, model(**inputs).logits)
    assert max(model.scored[:-1]) == size


# Two rows: one image, then two.
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"token_type_ids": [[0, 1], [0, 1, 1]]}, {"token_type_ids": [0, 1, 2]}),
        ({"pixel_values": torch.zeros(3, 8)}, {"pixel_values": [0, 1, 3]}),  # as of LLaVA
        ({"pixel_values": torch.zeros(2, 2, 8)}, {"pixel_values": [0, 1, 2]}),  # as of Idefics: padded
        (
            {"pixel_values": torch.zeros(9, 8), "image_grid_thw": torch.tensor([[1, 2, 2], [1, 1, 4], [1, 1, 1]])},
            {"pixel_values": [0, 4, 9], "image_grid_thw": [0, 1, 3]},  # as of Qwen
        ),
        ({"pixel_values": torch.zeros(5, 8)}, None),  # tiles, as of InternVL
    ],
)
def test_where_the_pixels_of_each_row_are(fields, expected):
    assert row_offsets([["image"], ["image", "image"]], fields, num_rows=2) == expected
