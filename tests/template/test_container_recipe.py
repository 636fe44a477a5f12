"""The recipe of a container in docs/clusters/technion.md, without Enroot itself."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from train_anywhere.files import ENGINE, ROOT

[RECIPE] = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/clusters/technion.md").read_text(), re.S)


def test_packages_of_the_image_are_those_of_the_requirements() -> None:
    pinned = {
        line.split()[0]
        for name in ("common", "lightning")
        for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
        if "==" in line.partition("#")[0]
    }
    [installed] = re.findall(r"pip install (.*)", RECIPE)
    assert set(installed.split()) <= pinned
    assert {p.partition("==")[0] for p in pinned - set(installed.split())} == OF_THE_IMAGE


OF_THE_IMAGE = {
    *("torch", "numpy", "pillow", "rich", "psutil", "setuptools", "tensorboard"),
    *("omegaconf", "tokenizers", "nvidia-ml-py"),
}
"""What NVIDIA's image has, hydra-core brings, or a run can do without."""


@pytest.mark.skipif(not (ROOT / "engine").is_dir(), reason="the engine is installed")
def test_the_line_that_builds_horovod_starts(tmp_path: Path) -> None:
    """It works in the project's folder, mounted read-only or not, without train_anywhere."""
    [line] = re.findall(r"cd /mnt && PYTHONPATH=engine python (.*)'", RECIPE)
    assert ENGINE == ROOT / "engine"
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": "engine"}
    done = subprocess.run(
        [sys.executable, "-S", *line.split(), "--help"], cwd=ROOT, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0 and "Build Horovod for the frameworks" in done.stdout, done.stderr
