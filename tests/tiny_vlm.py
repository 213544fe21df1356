"""A tiny vision-language model of the Qwen2-VL kind, with its processor and pictures, all made here, offline."""

from collections.abc import Sequence
from pathlib import Path

import tiny
import tiny_tools
import torch
from PIL import Image
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

SPECIAL_TOKENS = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
PATCH_SIZE, MERGE_SIZE = 4, 2

CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class ImageProcessor(Qwen2VLProcessor):
    """Qwen2-VL's processor without its part for videos, which needs torchvision."""

    def __init__(self, image_processor=None, tokenizer=None, chat_template=None):
        super().__init__(image_processor, tokenizer, chat_template=chat_template)


def make_processor(tool: str | None = None) -> ImageProcessor:
    """The processor, with one token for each call of a tool if there is one."""
    tokenizer = tiny_tools.make_tokenizer(tool) if tool else tiny.make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL_TOKENS})
    # Pictures keep their size and their colours: a pixel of value v comes out as v / 255.
    image_processor = Qwen2VLImageProcessorPil(
        patch_size=PATCH_SIZE, merge_size=MERGE_SIZE, temporal_patch_size=1, min_pixels=64, max_pixels=1024
    )
    image_processor.do_normalize = False
    return ImageProcessor(image_processor, tokenizer, chat_template=CHAT_TEMPLATE)


def save_model(path: Path, processor: ImageProcessor) -> str:
    """Write a random model for a processor's vocabulary to a folder, and return the folder's name."""
    tokenizer = processor.tokenizer
    image, video, start, end = (tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS)
    torch.manual_seed(0)
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "initializer_range": 0.2,
        },
        vision_config={
            "depth": 1,
            "embed_dim": 16,
            "hidden_size": 32,
            "num_heads": 2,
            "mlp_ratio": 2,
            "patch_size": PATCH_SIZE,
            "spatial_merge_size": MERGE_SIZE,
            "temporal_patch_size": 1,
            "initializer_range": 0.5,  # for pictures to matter
        },
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=False,
    )
    model = Qwen2VLForConditionalGeneration(config)
    calls = [token_id for token, token_id in tokenizer.get_added_vocab().items() if token.startswith("<call>")]
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *calls]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(path)
    return str(path)


def generation_kwargs(processor: ImageProcessor) -> dict:
    """Keep the random model from sampling the tokens that stand for pictures."""
    return {"suppress_tokens": processor.tokenizer.convert_tokens_to_ids(SPECIAL_TOKENS)}


def make_picture(value: int, num_blocks: int = 1) -> Image.Image:
    """A picture of one grey, `num_blocks` image tokens wide."""
    size = PATCH_SIZE * MERGE_SIZE
    return Image.new("RGB", (size * num_blocks, size), (value, value, value))


def values_of(pixel_values: torch.Tensor, image_grid_thw: torch.Tensor, num_images: Sequence[int]) -> list[list]:
    """For each row, the grey and the width in image tokens of each of its pictures."""
    patches = image_grid_thw.prod(dim=1).tolist()
    pictures = [(round(part.mean().item() * 255), len(part) // MERGE_SIZE**2) for part in pixel_values.split(patches)]
    rows = iter(pictures)
    return [[next(rows) for _ in range(count)] for count in num_images]
