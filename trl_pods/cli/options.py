"""
The options of `trl-pods grpo`, and whether a command line and its recipe fit them, without importing torch.

Importing TRL's dataclasses, and torch with them, takes seconds. So what they define (names, types, choices, help) is
kept in the user's cache folder, by the versions of the packages, once it has been read from them.
"""

import argparse
import difflib
import hashlib
import json
import os
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from transformers.hf_argparser import string_to_bool

from ..checks.errors import SetupError
from ..runs.atomic import atomic_write
from .recipe import Recipe, kind_of

PACKAGES = ("trl-pods", "trl", "transformers", "accelerate", "peft")
TYPES = {"int": int, "float": float, "string_to_bool": string_to_bool}


class OptionParser(argparse.ArgumentParser):
    """Turns a recipe into words of the command line, and says what is wrong with either."""

    launcher: dict[str, bool]  # option of `accelerate launch` -> whether it is a flag

    def read(self, arguments: list[str]) -> tuple[Recipe, list[str], list[str]]:
        """The recipe that the arguments name, all words for this parser, and all for the launcher."""
        namespace, rest = self.parse_known_args(arguments)
        recipe = Recipe(namespace.config)
        for option in {word.split("=")[0][2:].replace("-", "_") for word in arguments if word.startswith("--")}:
            recipe.lines.pop(option, None)  # set on the command line, so the recipe is not to blame for it
        own, for_launcher = self._words(recipe)
        return recipe, [*own, *arguments], [*for_launcher, *self._for_launcher(rest)]

    def takes(self, name: str, value: Any) -> bool:
        """Whether the field of an option takes null, a list or a mapping, where that is known."""
        return True

    def error(self, message: str) -> NoReturn:
        """Raise what `argparse` complains of, in place of printing the usage of some 400 options and exiting."""
        raise SetupError(f"{message}. See `{self.prog} --help`.")

    def _words(self, recipe: Recipe) -> tuple[list[str], list[str]]:
        actions = {action.dest: action for action in self._actions if action.option_strings and action.nargs != 0}
        own: list[str] = []
        for_launcher: list[str] = []
        errors: list[str] = []
        for name in recipe.lines:
            try:
                if name == "env":
                    _set_environment(recipe)
                elif name == "datasets":  # a list of mappings, which no word can say
                    self.set_defaults(datasets=_mappings(recipe, name))
                elif name in actions and name != "config":
                    own += self._words_of(recipe, name, actions[name])
                elif name in self.launcher:
                    for_launcher += _words_for_launcher(recipe, name, is_flag=self.launcher[name])
                else:
                    errors.append(f"{recipe.where(name)}: {self._unknown(name)}")
            except SetupError as error:
                errors.append(str(error))
        if errors:
            raise SetupError("\n".join(errors))
        return own, for_launcher

    def _words_of(self, recipe: Recipe, name: str, action: argparse.Action) -> list[str]:
        value, words = recipe.value(name), recipe.words(name, action)
        if not isinstance(value, str) and not self.takes(name, value):
            raise SetupError(f"{recipe.where(name)}: `{name}` is {value!r}, which is not what the option takes.")
        if words is None:
            self.set_defaults(**{name: value})
            return []
        try:
            self.parse_known_args(words)
        except SetupError as error:
            raise SetupError(
                f"{recipe.where(name)}: `{name}` is {value!r}, but it must be {_expected(action, str(value))}."
            ) from error
        return words

    def _for_launcher(self, rest: list[str]) -> list[str]:
        """The arguments for the launcher: what is left when this parser has taken its own."""
        for argument in rest:
            name = argument[2:].split("=")[0]
            if argument.startswith("--") and name.replace("-", "_") not in self.launcher:
                raise SetupError(self._unknown(name, prefix="--"))
        if rest and not rest[0].startswith("--"):
            raise SetupError(f"The argument {rest[0]!r} belongs to no option. Write `--option value`.")
        return rest

    def _unknown(self, name: str, prefix: str = "") -> str:
        dests = {action.dest for action in self._actions} - {"help", "config"}
        nearest = difflib.get_close_matches(name.replace("-", "_"), [*sorted(dests), *self.launcher], n=1)
        way_out = f"Did you mean `{prefix}{nearest[0]}`?" if nearest else f"`{self.prog} --help` lists all."
        return f"There is no option `{prefix}{name}`. {way_out}"


def check_early(arguments: list[str], prog: str) -> None:
    """Print the help or say what is wrong, if the options are in the cache; what is right is parsed again later."""
    try:
        known = json.loads(_cache(prog).read_text())
    except (OSError, ValueError):
        return
    if {"-h", "--help"} & set(arguments):
        print(known["help"], end="")
        sys.exit(0)
    parser = OptionParser(prog=prog, add_help=False, allow_abbrev=False)
    parser.launcher = known["launcher"]
    for option in known["options"]:
        parser.add_argument(*option.pop("flags"), **option | {"type": TYPES.get(option["type"], str)})
    parser.read(arguments)


def remember(parser: OptionParser) -> None:
    """Keep the options of a parser in the cache."""
    path = _cache(parser.prog)
    if path.exists():
        return
    options: list[dict[str, Any]] = [
        {
            "flags": action.option_strings,
            "dest": action.dest,
            "nargs": action.nargs,
            "const": action.const,
            "type": kind_of(action),
            "choices": action.choices and [str(choice) for choice in action.choices],
        }
        for action in parser._actions
        if action.option_strings and action.nargs != 0
    ]
    known = {"help": parser.format_help(), "launcher": parser.launcher, "options": options}
    with suppress(SetupError), atomic_write(path) as draft:  # nothing is lost where there is no place for it
        draft.write_text(json.dumps(known))


def _cache(prog: str) -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    own = Path(__file__).parent
    sources = (own / "options.py", own / "arguments.py", own.parent / "config.py")  # which change in a checkout
    key = [prog, sys.version, *map(version, PACKAGES), *(source.stat().st_mtime_ns for source in sources)]
    return Path(folder) / "trl_pods" / f"options-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.json"


def _expected(action: argparse.Action, text: str) -> str:
    if action.choices:
        choices = [str(choice) for choice in action.choices]
        nearest = [c for c in choices if c.startswith(text)][:3] or difflib.get_close_matches(text, choices, n=3)
        return f"one of {choices}" if len(choices) <= 10 or not nearest else f"a known value, such as {nearest}"
    kinds = {"int": "a whole number", "float": "a number", "string_to_bool": "true or false"}
    return kinds.get(kind_of(action), "something else")


def _words_for_launcher(recipe: Recipe, name: str, *, is_flag: bool) -> list[str]:
    """A file is looked for in the current folder, then beside the recipe."""
    words = recipe.words(name)
    if not words:
        return []
    value = words[0].split("=", maxsplit=1)[1]
    if is_flag:
        if value not in ("true", "false"):
            raise SetupError(f"{recipe.where(name)}: `{name}` is {value!r}, but it must be true or false.")
        return [f"--{name}"] if value == "true" else []
    beside = Path(recipe.path or ".").parent / value
    if name in ("accelerate_config", "config_file") and not Path(value).is_file() and beside.is_file():
        value = str(beside)
    return [f"--{name}", value]


def _mappings(recipe: Recipe, name: str) -> list[dict[str, Any]]:
    value = recipe.value(name)
    if value in (None, "None"):
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise SetupError(
            f"{recipe.where(name)}: `{name}` is {value!r}, but it must be a list of mappings. Write '- path: json' and "
            "what belongs to it below."
        )
    return value


def _set_environment(recipe: Recipe) -> None:
    try:
        os.environ.update(recipe.texts("env"))
    except (ValueError, OSError) as error:
        raise SetupError(
            f"{recipe.where('env')}: `env` is {recipe.value('env')!r}, but it must map variables to values: {error}."
        ) from error
