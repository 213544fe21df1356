"""Images with n > m: the pixels that are trained are those of the kept rows."""

import pytest
import tiny_vlm
import torch
from datasets import Dataset
from recording import assert_aligned, make_trainer, number_in, score


def pictures_of(number: int) -> list[tuple[int, int]]:
    """Grey and width of the pictures that belong to a prompt: one or two, of different sizes."""
    return [(10 * number + i + 1, 1 + (number + i) % 3) for i in range(1 + number % 2)]


def grey_and_width(picture) -> tuple[int, int]:
    return picture.getpixel((0, 0))[0], picture.width // (tiny_vlm.PATCH_SIZE * tiny_vlm.MERGE_SIZE)


def judge(prompts, completion_ids, target, **kwargs):
    """Depends on the pictures in the prompt, on the completion and on a column."""
    rewards = []
    for prompt, ids, t in zip(prompts, completion_ids, target, strict=True):
        parts = prompt[0]["content"]
        pictures = [grey_and_width(part["image"]) for part in parts if part["type"] == "image"]
        rewards.append(score(number_in(prompt), pictures, tuple(ids), t))
    return rewards


def make_dataset(column: str) -> Dataset:
    rows = []
    for number in range(12):
        pictures = [tiny_vlm.make_picture(*picture) for picture in pictures_of(number)]
        prompt = [{"role": "user", "content": f"State the final answer {number}"}]
        rows.append({"prompt": prompt, "target": number, column: pictures if column == "images" else pictures[0]})
    return Dataset.from_list(rows)


def train_with_images(column, output_dir, **arguments):
    processor = tiny_vlm.make_processor()
    model = tiny_vlm.make_model(processor)
    trainer = make_trainer(
        model, judge, output_dir, train_dataset=make_dataset(column), processing_class=processor, **arguments
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("column", ["images", "image"])
def test_pixels_belong_to_the_kept_rows(column, tmp_path):
    trainer = train_with_images(column, tmp_path, max_steps=3)

    def own_pictures(row):
        return pictures_of(row["number"])[: 1 if column == "image" else 2]

    for inputs in trainer.trained:
        rows = trainer.rows(inputs)
        found = tiny_vlm.values_of(inputs["pixel_values"], inputs["image_grid_thw"], inputs["num_images"])
        assert found == [own_pictures(row) for row in rows]
        for row in rows:
            assert row["text"].count("<|image_pad|>") == sum(width for _, width in own_pictures(row))
    assert_aligned(trainer, reward_of=lambda row: judge_trained(row, own_pictures(row)))


def judge_trained(row: dict, pictures: list) -> float:
    return score(row["number"], pictures, row["completion"], row["number"])


def test_reference_log_probabilities_see_the_pixels_of_the_kept_rows(tmp_path):
    trainer = train_with_images("images", tmp_path, beta=0.1)
    assert trainer.logged("kl")[0] == pytest.approx(0, abs=1e-6) and trainer.logged("kl")[1] > 0


def test_micro_batches_carry_the_pixels_of_their_rows(tmp_path):
    trainer = train_with_images(
        "images", tmp_path, per_device_train_batch_size=2, steps_per_generation=4, gradient_accumulation_steps=1
    )
    assert [len(inputs["num_images"]) for inputs in trainer.trained] == [2, 2]
    for inputs in trainer.trained:
        found = tiny_vlm.values_of(inputs["pixel_values"], inputs["image_grid_thw"], inputs["num_images"])
        assert found == [pictures_of(row["number"]) for row in trainer.rows(inputs)]


def test_pixels_reach_the_loss(tmp_path):
    trainer = train_with_images("images", tmp_path, max_steps=1)
    assert any(p.grad is None or p.grad.abs().sum() >= 0 for p in trainer.model.visual.parameters())
    assert all(torch.isfinite(torch.tensor(trainer.losses)))
