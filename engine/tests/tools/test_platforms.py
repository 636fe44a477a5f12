"""The locks hold on every platform of the page Getting started, by the index's metadata."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tools.lock import CPU_WHEELS, LOCKS, install_uv, which

PLATFORMS = {
    "Linux x86_64, CPU": ("x86_64-unknown-linux-gnu", "cpu"),
    "Linux x86_64, GPU": ("x86_64-unknown-linux-gnu", "gpu"),
    "Linux aarch64, CPU": ("aarch64-unknown-linux-gnu", "cpu"),
    "Linux aarch64, GPU": ("aarch64-unknown-linux-gnu", "gpu"),
    "macOS arm64": ("aarch64-apple-darwin", "cpu"),
}
PYTHONS = ("3.11", "3.12", "3.13")

APART = re.compile(r"^(?:torch==\S+\+cpu|antlr4-python3-runtime==).*\n(?:    .*\n)*", re.MULTILINE)
"""torch without CUDA, which only PyTorch's own index has, and a package of Python source only."""


@pytest.fixture(scope="module")
def uv(tmp_path_factory: pytest.TempPathFactory) -> str:
    return which("uv") or install_uv(tmp_path_factory.mktemp("uv"))


def locked(framework: str, wheels: str) -> str:
    names = ("common", "dev", framework, f"{framework}-{wheels}", f"{framework}-dev")
    return "".join((LOCKS / f"{name}.txt").read_text() for name in names if (LOCKS / f"{name}.txt").exists())


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["lightning", "keras"])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_locked_package_has_a_wheel(uv: str, tmp_path: Path, platform: str, framework: str) -> None:
    target, wheels = PLATFORMS[platform]
    text = locked(framework, wheels)
    (tmp_path / "locked.txt").write_text(APART.sub("", text))
    environ = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"}  # what torch's wheels need
    for version in PYTHONS:
        command = [
            uv, "pip", "install", "--dry-run", "--no-deps", "--require-hashes", "--only-binary", ":all:",
        ]  # fmt: skip
        command += ["--python-platform", target, "--python-version", version, "--target", str(tmp_path / "t")]
        command += ["--requirement", str(tmp_path / "locked.txt")]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert re.search(r"Would install \d{3} packages", done.stderr)
        if "torch==" in text and wheels == "cpu" and "linux" in target:
            machine = target.partition("-")[0]
            assert f"cp{version.replace('.', '')}-manylinux_2_28_{machine}.whl" in CPU_WHEELS.read_text()
