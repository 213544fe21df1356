"""A tiny model that calls tools: each of ten tokens is one whole call, and ends the turn."""

import json
from pathlib import Path

import tiny
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

NUM_CALLS = 10

CHAT_TEMPLATE = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool.function.name }};{% endfor %}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "open": "<call>",
            "close_pattern": "</call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": "</s>", "content": "text"},
    },
}


def make_tokenizer(tool: str) -> PreTrainedTokenizerFast:
    """The tiny tokenizer, with one token for each call of `tool` with a value from 0 to 9."""
    tokenizer = tiny.make_tokenizer()
    calls = [json.dumps({"name": tool, "arguments": {"value": value}}) for value in range(NUM_CALLS)]
    tokenizer.add_tokens([AddedToken(f"<call>{call}</call>", normalized=False) for call in calls])
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.response_template = RESPONSE_TEMPLATE
    return tokenizer


def save_model(path: Path) -> str:
    """Write a random model for `make_tokenizer`'s vocabulary to a folder, and return the folder's name."""
    tokenizer = make_tokenizer("tool")
    model = tiny.make_model(tokenizer, max_position_embeddings=512, initializer_range=0.2)
    first_call = len(tokenizer) - NUM_CALLS
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *range(first_call, len(tokenizer))]
    model.save_pretrained(path)
    return str(path)


def calls_in(completion_ids) -> tuple[int, ...]:
    """The values of the calls in a completion."""
    first_call = len(tiny.make_tokenizer())
    return tuple(token - first_call for token in completion_ids if token >= first_call)
