"""A script of tools/ prints its page with `--help`, and does nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from train_anywhere.files import ROOT


@pytest.mark.new_process
@pytest.mark.parametrize("script", sorted(ROOT.glob("tools/*.py")), ids=lambda path: path.name)
def test_help_is_the_docstring(tmp_path: Path, script: Path) -> None:
    copy = Path(shutil.copy(script, tmp_path))
    done = subprocess.run(
        [sys.executable, copy, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stderr == ""
    assert script.read_text().split('"""')[1].strip() in done.stdout
    assert list(tmp_path.iterdir()) == [copy]
