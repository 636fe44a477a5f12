"""A copy of configs/ that a test may change."""

import shutil
from pathlib import Path

import pytest

from train_anywhere.config.command import compose, diagnose, help_comments


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project's configs/, to which a test may add files."""
    folder = shutil.copytree(compose.CONFIGS, tmp_path / "configs", ignore=shutil.ignore_patterns("local"))
    for module in (compose, diagnose, help_comments):
        monkeypatch.setattr(module, "CONFIGS", folder)
    return folder
