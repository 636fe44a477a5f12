"""What several tests of checkpoints need."""

import pytest


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that are printed, each once."""
    lines: list[str] = []
    for name in ("print_once", "print_line"):
        where = f"train_anywhere.checkpoints.checkpointer.{name}"
        monkeypatch.setattr(where, lambda line: line in lines or lines.append(line))
    return lines
