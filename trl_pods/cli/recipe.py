"""
Reading a recipe: YAML options as the words that the command line would have, and the lines that errors name.

A scalar is taken as it is written, so `no` is a word for `save_strategy` and false for `bf16`, `1e-6` is a number, and
a single value does where a list is wanted.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import yaml

from ..checks.errors import SetupError, did_you_mean
from .bundled import bundled_recipes, recipe_path


class Recipe:
    """The options of a YAML file, by name, in the file's order; none without a file."""

    def __init__(self, path: str | None = None):
        path = self.path = None if path is None else recipe_path(path)
        self.lines: dict[str, int] = {}
        self._nodes: dict[str, yaml.Node] = {}
        if path is None:
            return
        try:
            self._loader = _Loader(_text_of(path))
            root = self._loader.get_single_node()
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise SetupError(f"{path}:{line}: this is not valid YAML: {error.problem}.") from error
        except yaml.YAMLError as error:  # a character that YAML does not allow
            raise SetupError(f"{path}: this is not valid YAML: {error}.") from error
        if not isinstance(root, yaml.MappingNode | None):
            raise SetupError(f"{path}: a recipe is a mapping. Write one `option: value` a line.")
        for key, value in root.value if root else ():
            name, line = str(key.value).replace("-", "_"), key.start_mark.line + 1
            if name in self.lines:
                raise SetupError(f"{path}:{line}: `{name}` was given in line {self.lines[name]} already.")
            self.lines[name], self._nodes[name] = line, value

    def where(self, name: str) -> str:
        """File and line of an option, such as `recipe.yaml:12`."""
        return f"{self.path}:{self.lines[name]}"

    def value(self, name: str) -> Any:
        """The value of an option as YAML reads it, its numbers and words as they are written."""
        try:
            return self._plain(self._nodes[name])
        except (yaml.YAMLError, ValueError) as error:
            raise SetupError(f"{self.where(name)}: `{name}` cannot be read: {error}.") from error

    def texts(self, name: str) -> dict[str, str]:
        """The value of an option that maps names to texts, as they are written."""
        node = self._nodes[name]
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else [node]
        if not isinstance(node, yaml.MappingNode) or not all(isinstance(part, yaml.ScalarNode) for part in parts):
            raise ValueError("it is no mapping of names to texts")
        return {key.value: value.value for key, value in node.value}

    def words(self, name: str, action: argparse.Action | None = None) -> list[str] | None:
        """The words of an option on the command line, or `None` where it has none for the value, such as null or []."""
        node, value = self._nodes[name], self.value(name)
        if value is None or value == [] or (isinstance(value, dict) and action and kind_of(action) == "dict"):
            return None
        if node.tag.endswith(":bool"):
            if action is None or kind_of(action) == "string_to_bool":
                value = str(self._loader.construct_object(node)).lower()  # `on` is YAML's, not the command line's
            elif action.choices:
                value = value.lower()
        if isinstance(value, list) and action is not None:
            items = [item if isinstance(item, str) else json.dumps(item) for item in value]
            has_words = action.nargs == "+" and not any(re.match("-[^0-9.]", item) for item in items)
            return [f"--{name}", *items] if has_words else None
        return [f"--{name}={value if isinstance(value, str) else json.dumps(value)}"]

    def _plain(self, node: yaml.Node) -> Any:
        """Scalars, also within a list, as they are written; mappings as YAML reads them."""
        if isinstance(node, yaml.ScalarNode):
            return None if node.tag.endswith(":null") else node.value
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item) for item in node.value]
        return self._loader.construct_object(node, deep=True)


def kind_of(action: argparse.Action) -> str:
    """The type that an option converts to, by name, as TRL and transformers each have a `string_to_bool`."""
    return getattr(action.type, "__name__", "")


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes `1e-7` for a text; this loader takes it for a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        advice = did_you_mean(path, bundled_recipes(), "Check the path after `--config`, or see `trl-pods recipes`.")
        raise SetupError(f"The recipe {path!r} cannot be read: {reason}. {advice}") from error
