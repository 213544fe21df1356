"""Loading a dataset by its name: of the Hub, of a folder, or of a file."""

import difflib
from pathlib import Path
from typing import Any

from datasets import Features, Json, List, Value, load_dataset

KINDS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv"}


def load_named(name: str, config: str | None = None, *, streaming: bool = False) -> Any:
    """Load the dataset of that name; a name that ends as files do is one, and not looked for on the Hub."""
    file = Path(name)
    if not file.is_file():
        if file.suffix in KINDS and not file.is_dir():
            raise ValueError(f"`dataset_name` is {name!r}, but there is no such file. {_nearest(file)}")
        return _load(name, name=config, streaming=streaming)
    if file.suffix not in KINDS:
        raise ValueError(f"`dataset_name` is the file {name!r}, but files may end in {list(KINDS)}.")
    return _load(KINDS[file.suffix], data_files=name, streaming=streaming)


def _nearest(file: Path) -> str:
    if not file.parent.is_dir():
        return f"There is no folder {str(file.parent)!r} either."
    found = [path.name for path in file.parent.iterdir() if path.is_file()]
    nearest = difflib.get_close_matches(file.name, found, n=1) or sorted(n for n in found if Path(n).suffix in KINDS)
    return f"Did you mean {str(file.with_name(nearest[0]))!r}?" if nearest else "Check the path."


def _load(path: str, **arguments: Any) -> Any:
    """As `load_dataset`, but what JSON has as text stays text, where that makes dates of it."""
    data = load_dataset(path, **arguments)
    first = next(iter(data.values()))
    if first.info.builder_name != "json" or first.features is None:
        return data
    features = _as_written(first.features)
    return data if features == first.features else load_dataset(path, **arguments, features=Features(features))


def _as_written(feature: Any) -> Any:
    if isinstance(feature, dict):
        return {name: _as_written(part) for name, part in feature.items()}
    if isinstance(feature, List):
        return List(_as_written(feature.feature))
    is_date = isinstance(feature, Value) and feature.dtype.startswith(("timestamp", "date", "time"))
    return Json() if is_date else feature
