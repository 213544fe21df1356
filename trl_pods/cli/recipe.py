"""
Reading a recipe: YAML whose values mean what they mean on the command line, and whose lines errors can name.

A scalar is taken as it is written and converted by the option it is for, so `no` is a word for `save_strategy` and
false for `bf16`, `1e-6` is a number, and a single value does where a list is wanted.
"""

import argparse
import difflib
import re
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

import yaml

from ..checks.errors import SetupError


class Entry(NamedTuple):
    """A value of a recipe, before it is known which option it is for."""

    line: int
    node: yaml.Node


class Recipe:
    """The options of a YAML file, by name."""

    def __init__(self, path: str | None = None):
        self.path = path
        self.entries: dict[str, Entry] = {}  # by option, in the file's order
        self.overridden: set[str] = set()  # options that the command line sets, for which the recipe is not to blame
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
            if name in self.entries:
                raise SetupError(f"{path}:{line}: `{name}` was given in line {self.entries[name].line} already.")
            self.entries[name] = Entry(line, value)

    def where(self, name: str) -> str:
        """Say where an option is given."""
        return f"{self.path}:{self.entries[name].line}"

    def plain(self, name: str) -> Any:
        """Give the value of an option as YAML reads it."""
        try:
            return self._loader.construct_object(self.entries[name].node, deep=True)
        except (yaml.YAMLError, ValueError) as error:
            raise SetupError(f"{self.where(name)}: `{name}` cannot be read: {error}.") from error

    def texts(self, name: str) -> dict[str, str]:
        """Give the value of an option that maps names to texts, as they are written."""
        node = self.entries[name].node
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else [None]
        if not all(isinstance(part, yaml.ScalarNode) for part in parts):
            raise ValueError("it is no mapping of names to texts")
        return {key.value: value.value for key, value in node.value}

    def text(self, name: str) -> str:
        """Give the value of an option as it is written, for messages."""
        node = self.entries[name].node
        return node.value if isinstance(node, yaml.ScalarNode) else str(self.plain(name))

    def value(self, name: str, action: argparse.Action, hint: Any) -> Any:
        """Convert the value of an option as the command line would."""
        node, types = self.entries[name].node, _types(hint)
        try:
            if isinstance(node, yaml.ScalarNode):
                value = self._scalar(node, action, types)
                return value if value is None or action.nargs != "+" or isinstance(value, list) else [value]
            kind = list if isinstance(node, yaml.SequenceNode) else dict
            if kind is list and action.nargs == "+":
                return [self._item(item, action, types) for item in node.value]
            if kind not in types:
                raise ValueError
            return self.plain(name)
        except (argparse.ArgumentTypeError, TypeError, ValueError) as error:
            expected = _describe(self.text(name), action, types)
            raise SetupError(
                f"{self.where(name)}: `{name}` is {self.text(name)!r}, but it must be {expected}."
            ) from error

    def _item(self, node: yaml.Node, action: argparse.Action, types: set[type]) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, action, types - {type(None)})
        if action.type in (str, int, float):
            raise ValueError
        return self._loader.construct_object(node, deep=True)

    def _scalar(self, node: yaml.ScalarNode, action: argparse.Action, types: set[type]) -> Any:
        if node.tag.endswith(":null"):
            if type(None) in types:
                return None
            raise ValueError
        if node.tag.endswith(":bool") and bool in types:
            return self._loader.construct_object(node)
        value = node.value
        if str not in types or action.choices:
            value = action.type(value) if callable(action.type) else value
        if action.choices and value not in action.choices:
            value = value.lower()  # `No` is YAML's false too
            if value not in action.choices:
                raise ValueError
        return value


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SetupError(f"The recipe {path!r} cannot be read: {reason}. Check the path after `--config`.") from error


class _Loader(yaml.SafeLoader):
    """YAML 1.1, but with numbers such as `1e-6`, which it takes for text, inside lists and mappings."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _types(hint: Any) -> set[type]:
    """The types that a field accepts: `list[float] | None` gives list, float and `NoneType`."""
    if get_origin(hint) is None:
        return {hint}
    inner = set().union(*(_types(argument) for argument in get_args(hint) if not isinstance(argument, str)))
    return inner | ({get_origin(hint)} if isinstance(get_origin(hint), type) else set())


def _describe(text: str, action: argparse.Action, types: set[type]) -> str:
    if action.choices:
        choices = [str(choice) for choice in action.choices]
        nearest = [c for c in choices if c.startswith(text)][:3] or difflib.get_close_matches(text, choices, n=3)
        return f"one of {choices}" if len(choices) <= 10 or not nearest else f"a known value, such as {nearest}"
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        dict: "a mapping",
        list: "a list",
        str: "text",
        type(None): "null",
    }
    return " or ".join(word for kind, word in words.items() if kind in types) or "something else"
