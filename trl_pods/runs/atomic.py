"""Atomic writes, whatever ends the process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from ..checks.errors import SetupError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a draft to write in the `with` block, which takes the file's place at its end."""
    draft = path.with_name(f"draft-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        draft.replace(path)
    except (OSError, SafetensorError) as error:
        raise SetupError(
            f"{str(path)!r} cannot be written: {error}. Make room there, or set another `output_dir`."
        ) from error
