"""What several tests of checkpoints need."""

import pytest


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that are printed, each once."""
    lines: list[str] = []
    for module in ("checkpointer", "disk.event_files"):
        for name in ("print_once", "print_line"):
            where = f"train_anywhere.checkpoints.{module}.{name}"
            monkeypatch.setattr(where, lambda line: line in lines or lines.append(line), raising=False)
    return lines
