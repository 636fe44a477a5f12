"""Source files of a project that is not this one, and a reader for them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from src.config.signatures import Definition, read

Project = Callable[..., Callable[[str], Definition]]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Called with the source of `mine.py` and of other files by their name without `.py`; returns what reads names there."""

    def write(mine: str = "", **others: str) -> Callable[[str], Definition]:
        for name, source in {"mine": mine, **others}.items():
            file = tmp_path / f"{name.replace('__in__', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)
        return lambda dotted: read(dotted, roots=[tmp_path])

    return write
