"""Images with n > m: the pixels that are trained are those of the kept rows."""

import json

import pytest
import tiny
import tiny_vlm
import torch
from datasets import Dataset
from recording import Judge, assert_aligned, make_trainer, number_in, score
from transformers import Qwen2VLForConditionalGeneration
from versions import not_in_trl_1_10


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


@pytest.fixture(scope="module")
def vlm_path(tmp_path_factory) -> str:
    return tiny_vlm.save_model(tmp_path_factory.mktemp("vlm"), tiny_vlm.make_processor())


def judge_of_even_numbers(prompts, **kwargs):
    """Depends on all that, for prompts of even numbers; for the others it is one value."""
    rewards = judge(prompts, **kwargs)
    return [0.5 if number_in(prompt) % 2 else reward for prompt, reward in zip(prompts, rewards, strict=True)]


def train_with_images(vlm_path, column, output_dir, reward=judge, **arguments):
    processor = tiny_vlm.make_processor()
    arguments = {"train_dataset": make_dataset(column), "processing_class": processor} | arguments
    # In order, so that each batch has a prompt with one picture and a prompt with two.
    arguments |= {"generation_kwargs": tiny_vlm.generation_kwargs(processor), "shuffle_dataset": False}
    trainer = make_trainer(vlm_path, reward, output_dir, **arguments)
    trainer.train()
    return trainer


@pytest.mark.feature("images")
@pytest.mark.parametrize(("reward", "num_trained"), [(judge, 2), (judge_of_even_numbers, 1)])
@pytest.mark.parametrize("column", ["images", "image"])
def test_case_75_pixels_belong_to_the_kept_rows(column, reward, num_trained, vlm_path, tmp_path):
    trainer = train_with_images(vlm_path, column, tmp_path, reward, max_steps=3)
    for inputs in trainer.trained:
        assert len({row["number"] for row in trainer.rows(inputs)}) == num_trained, "prompts are left out, or none is"

    def own_pictures(row):
        return pictures_of(row["number"])[: 1 if column == "image" else 2]

    for inputs in trainer.trained:
        rows = trainer.rows(inputs)
        found = tiny_vlm.values_of(inputs["pixel_values"], inputs["image_grid_thw"], inputs["num_images"])
        assert found == [own_pictures(row) for row in rows]
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        assert torch.equal(inputs["mm_token_type_ids"].bool(), ids == trainer._image_pad_token_id)
        for row in rows:
            assert row["text"].count("<|image_pad|>") == sum(width for _, width in own_pictures(row))
    assert_aligned(trainer, reward_of=lambda row: judge_trained(row, own_pictures(row)))


def test_case_93_prompts_and_pictures_that_a_reward_function_changes_are_trained_as_they_were(vlm_path, tmp_path):
    def changing(prompts, images, **kwargs):
        rewards = judge(prompts, images=images, **kwargs)
        parts = [part for messages in prompts for message in messages for part in message["content"]]
        for picture in [*sum(images, []), *(part["image"] for part in parts if part["type"] == "image")]:
            picture.paste(0, (0, 0, *picture.size))
        for messages in prompts:
            messages.append({"role": "assistant", "content": "nothing"})
        return rewards

    trainer = train_with_images(vlm_path, "images", tmp_path, changing)
    for inputs in trainer.trained:
        found = tiny_vlm.values_of(inputs["pixel_values"], inputs["image_grid_thw"], inputs["num_images"])
        assert found == [pictures_of(row["number"]) for row in trainer.rows(inputs)]


def judge_trained(row: dict, pictures: list) -> float:
    return score(row["number"], pictures, row["completion"], row["number"])


def test_reference_log_probabilities_see_the_pixels_of_their_rows(vlm_path, tmp_path):
    trainer = train_with_images(vlm_path, "images", tmp_path, beta=0.1)
    assert trainer.logged("kl")[0] == pytest.approx(0, abs=1e-6) and trainer.logged("kl")[1] > 0
    reference = Qwen2VLForConditionalGeneration.from_pretrained(vlm_path)
    for inputs in trainer.trained:
        for row, found in zip(trainer.rows(inputs), inputs["ref_per_token_logps"], strict=True):
            expected = log_probabilities(reference, row, pictures_of(row["number"]))
            torch.testing.assert_close(found[: len(expected)], expected, rtol=0, atol=1e-4)
            others = log_probabilities(reference, row, [(250, width) for _, width in pictures_of(row["number"])])
            assert (others - expected).abs().max() > 1e-2, "pictures do not matter, so nothing was checked"


def log_probabilities(model, row: dict, pictures: list) -> torch.Tensor:
    """Of the tokens of one row's completion."""
    images = [{"type": "image", "image": tiny_vlm.make_picture(*picture)} for picture in pictures]
    content = [*images, {"type": "text", "text": f"State the final answer {row['number']}"}]
    inputs = tiny_vlm.make_processor().apply_chat_template(
        [[{"role": "user", "content": content}]], add_generation_prompt=True, tokenize=True, return_dict=True
    )
    completion = torch.tensor([row["completion"]])
    ids = torch.cat([torch.tensor(inputs["input_ids"]), completion], dim=1)
    types = torch.cat([torch.tensor(inputs["mm_token_type_ids"]), torch.zeros_like(completion)], dim=1)
    pixels = {name: torch.as_tensor(inputs[name]) for name in ("pixel_values", "image_grid_thw")}
    with torch.no_grad():
        logits = model(input_ids=ids, mm_token_type_ids=types, **pixels).logits[0, :-1].log_softmax(dim=-1)
    return logits[-completion.size(1) :].gather(1, completion[0, :, None])[:, 0]


def test_micro_batches_carry_the_pixels_of_their_rows(vlm_path, tmp_path):
    trainer = train_with_images(
        vlm_path,
        "images",
        tmp_path,
        per_device_train_batch_size=2,
        steps_per_generation=4,
        gradient_accumulation_steps=1,
    )
    assert [len(inputs["num_images"]) for inputs in trainer.trained] == [2, 2]
    for inputs in trainer.trained:
        found = tiny_vlm.values_of(inputs["pixel_values"], inputs["image_grid_thw"], inputs["num_images"])
        assert found == [pictures_of(row["number"]) for row in trainer.rows(inputs)]


def test_pixels_belong_to_the_kept_rows_of_a_rollout_func(vlm_path, tmp_path):
    tokenizer = tiny_vlm.make_processor().tokenizer

    def rollout(prompts, trainer):
        rendered = trainer.processing_class.apply_chat_template(
            prompts, add_generation_prompt=True, tokenize=True, return_dict=True
        )
        completion_ids = tokenizer([f"completion {i}" for i in range(len(prompts))])["input_ids"]
        return {"prompt_ids": rendered["input_ids"], "completion_ids": completion_ids, "logprobs": None}

    trainer = train_with_images(vlm_path, "images", tmp_path, rollout_func=rollout)
    for inputs in trainer.trained:
        found = tiny_vlm.values_of(inputs["pixel_values"], inputs["image_grid_thw"], inputs["num_images"])
        assert found == [pictures_of(row["number"]) for row in trainer.rows(inputs)]
    assert_aligned(trainer, reward_of=lambda row: judge_trained(row, pictures_of(row["number"])))


@not_in_trl_1_10("a table of completions with pictures cannot be printed")
def test_logged_pictures_stand_beside_their_prompts(vlm_path, tmp_path):
    trainer = train_with_images(vlm_path, "images", tmp_path, log_completions=True, log_multimodal=True)
    prompts, pictures = trainer._logs["prompt"], trainer._logs["images"]  # what TRL hands to W&B
    assert len(prompts) == len(pictures) == 16
    for prompt, row in zip(prompts, pictures, strict=True):
        assert [grey_and_width(picture) for picture in row] == pictures_of(number_in(prompt))


@pytest.mark.parametrize("num_pictures", [(1, 2, 0, 1), (1, 2, 2, 1)])
def test_rows_in_chunks_are_generated_from_their_own_pictures(num_pictures, vlm_path, tmp_path):
    """Prompts with the same text and other pictures have the completions that they have in one piece."""
    text = {"type": "text", "text": "State the final answer 1"}
    prompts = []
    for i, count in enumerate(num_pictures):
        pictures = [tiny_vlm.make_picture(60 * i + 20 * j + 5, 1 + (i + j) % 3) for j in range(count)]
        content = [*({"type": "image", "image": picture} for picture in pictures), text]
        prompts += [[{"role": "user", "content": content}]] * 4
    processor = tiny_vlm.make_processor()
    in_chunks, in_one_piece = (
        make_trainer(
            *(vlm_path, judge, tmp_path),
            rollout_batch_size=rollout_batch_size,
            generation_kwargs=tiny_vlm.generation_kwargs(processor) | {"do_sample": False},
            processing_class=processor,
        )
        for rollout_batch_size in (3, 16)
    )
    in_chunks.model.train(), in_one_piece.model.train()
    expected = in_one_piece._generate(prompts)[1]
    assert len({tuple(ids) for ids in expected}) == 4, "pictures do not matter, so nothing was checked"
    assert in_chunks._generate(prompts)[1] == expected


# Tools that answer with a picture


def draw(value: int) -> list | str:
    """
    Draw a picture.

    Args:
        value: How bright it is.

    Returns:
        The picture, or "dark" if there is none.
    """
    if value > 2:
        return "dark"
    return [{"type": "image", "image": tiny_vlm.make_picture(20 * value + 1, 1 + value)}]


def drawn_by(completion_ids) -> list[tuple[int, int]]:
    values = [CALL_VALUES[token] for token in completion_ids if token in CALL_VALUES]
    return [(20 * value + 1, 1 + value) for value in values[:1] if value <= 2]


CALL_VALUES = {
    token_id: json.loads(token.removeprefix("<call>").removesuffix("</call>"))["arguments"]["value"]
    for token, token_id in tiny_vlm.make_processor("draw").tokenizer.get_added_vocab().items()
    if token.startswith("<call>")
}


def train_with_drawings(reward, output_dir, **arguments):
    processor = tiny_vlm.make_processor("draw")
    arguments = {"max_completion_length": 32, "max_tool_calling_iterations": 1} | arguments
    trainer = make_trainer(
        tiny_vlm.save_model(output_dir / "model", processor),
        reward,
        output_dir,
        train_dataset=tiny.make_dataset(conversational=True),
        processing_class=processor,
        tools=[draw],
        generation_kwargs=tiny_vlm.generation_kwargs(processor),
        **arguments,
    )
    trainer.train()
    return trainer


@pytest.mark.feature("images that tools return")
@not_in_trl_1_10("pictures that tools return do not reach the update where no prompt has any")
@pytest.mark.parametrize("rollout_batch_size", [16, 2])
def test_pictures_from_tools_stay_with_the_rows_that_called(rollout_batch_size, tmp_path):
    judge = Judge()
    trainer = train_with_drawings(judge, tmp_path, max_steps=3, rollout_batch_size=rollout_batch_size)
    num_pictures = 0
    for inputs in trainer.trained:
        found = tiny_vlm.values_of(inputs["pixel_values"], inputs["image_grid_thw"], inputs["num_images"])
        for row, pictures, mask in zip(trainer.rows(inputs), found, inputs["tool_mask"], strict=True):
            assert pictures == drawn_by(row["completion"])[: len(pictures)]
            shown = trainer._tokenizer.decode(row["completion"]).count("<|image_pad|>")
            assert shown == sum(width for _, width in pictures)
            assert (mask == 0).sum() > shown or not pictures
            num_pictures += len(pictures)
    assert num_pictures > 0
    assert_aligned(trainer, judge)


def test_a_batch_whose_pictures_are_all_in_dropped_rows_trains(tmp_path):
    drawn = []

    def without_pictures(completions, completion_ids, **kwargs):
        answers = [[m["content"] for m in messages if m["role"] == "tool"] for messages in completions]
        has_picture = [any(isinstance(answer, list) for answer in row) for row in answers]
        drawn.extend(has_picture)
        rewards = [score(*ids) for ids in completion_ids]
        return [None if drawn else reward for drawn, reward in zip(has_picture, rewards, strict=True)]

    trainer = train_with_drawings(without_pictures, tmp_path, rollout_batch_size=64)  # of these, some draw
    assert any(drawn)
    assert all("pixel_values" not in inputs for inputs in trainer.trained)
    assert_aligned(trainer, reward_of=lambda row: score(*row["completion"]))
