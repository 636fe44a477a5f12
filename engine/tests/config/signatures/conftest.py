"""Source files of a project that is not this one, and a reader for them."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from train_anywhere.config.signatures import Definition, read

Project = Callable[..., Callable[[str], Definition]]


def write_project(folder: Path, mine: str = "", **others: str) -> Callable[[str], Definition]:
    """Write `mine.py` and other files, named without `.py`. Return a reader of their names."""
    for name, source in {"mine": mine, **others}.items():
        file = folder / f"{name.replace('__in__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return lambda dotted: read(dotted, folder)


def each_in_a_project(
    folder: Path, sources: Iterable[str], **others: str
) -> Iterator[tuple[str, Callable[[str], Definition]]]:
    """Yield each source of a `mine.py`, and what reads names of its project."""
    for number, source in enumerate(sources):
        yield source, write_project(folder / str(number), source, **others)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Called as `write_project`, without the folder."""
    return partial(write_project, tmp_path)
