"""`tools/engine.py` is killed at each file operation: after the next call the engine is whole."""

import hashlib
import re
import shutil
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.killed import run_killed
from tools import engine
from tools import engine_sources as sources

PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "train-anywhere"
version = "{version}"
readme = "README.md"
[tool.setuptools]
packages = ["train_anywhere"]
"""


def make_engine(folder: Path, version: str, value: int = 1) -> Path:
    """An engine of two files."""
    (folder / sources.PACKAGE).mkdir(parents=True)
    (folder / sources.PACKAGE / "__init__.py").write_text(f"value = {value}\n")
    (folder / "README.md").write_text(f"# Changelog\n\n## {version}\n\n- new\n")
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version}\n\n- new\n")
    (folder / "MANIFEST.in").write_text("include CHANGELOG.md CHECKSUMS\n")
    (folder / "pyproject.toml").write_text(PROJECT.format(version=version))
    sources.write_sums(folder)
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a small engine, and an environment that pip may change."""
    project = tmp_path / "project"
    make_engine(project / "engine", "0.1.0")
    (project / "requirements").mkdir()
    venv.create(project / ".venv", symlinks=True)
    packages = next((project / ".venv").glob("lib/python*/site-packages"))
    (packages / "all.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    monkeypatch.setattr(engine, "ROOT", project)
    monkeypatch.setattr(sys, "executable", str(project / ".venv/bin/python"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return project


def digest(folder: Path) -> str:
    return str(sorted(sources.file_digests(folder).items()))


def run(*words: str) -> int:
    return run_killed_at(0, *words)[1]


def run_killed_at(at: int, *words: str) -> tuple[bool, int]:
    log = engine.ROOT.parent / "log"
    killed, count = run_killed(lambda: engine.main([*words]), engine.ROOT, at, without=".engine-", log=log)
    if not at:
        assert "Traceback" not in log.read_text() and "error" not in log.read_text(), log.read_text()
    return killed, count


def kill_each(state: Callable[[], str], *words: str) -> None:
    """Kill a command at each operation, check the state, and let the next call finish."""
    saved = engine.ROOT.with_name("saved")
    shutil.rmtree(saved, ignore_errors=True)
    shutil.copytree(engine.ROOT, saved, symlinks=True)
    seen, at = [], 0
    while True:
        at += 1
        (engine.ROOT.parent / "log").unlink(missing_ok=True)
        shutil.rmtree(engine.ROOT)
        shutil.copytree(saved, engine.ROOT, symlinks=True)
        if not run_killed_at(at, *words)[0]:
            break
        seen.append(state())
    print(f"{' '.join(words)[:30]}: {at - 1} kills, then {dict.fromkeys(seen)}")
    assert at > 2


def whole_install(project: Path) -> str:
    """The version that a project without engine/ requires, after a check of its wheel and its sdist."""
    text = (project / "requirements/engine.txt").read_text()
    named = re.match(r"\./(\S+) ", text)
    assert named and (project / named[1]).is_file(), text
    sums = re.findall(r"--hash=sha256:(\w+)", text)
    assert hashlib.sha256((project / named[1]).read_bytes()).hexdigest() in sums
    version = engine.wheel_version(text)
    sdist = project / f"wheels/train_anywhere-{version}.tar.gz"
    assert f"{engine.SDIST}{hashlib.sha256(sdist.read_bytes()).hexdigest()}" in text
    return version


def test_a_killed_update(project: Path, tmp_path: Path) -> None:
    new = make_engine(tmp_path / "new/engine", "0.2.0", 2)
    after = digest(new)

    def state() -> str:
        assert run("update", str(new.parent)) and digest(project / "engine") == after
        assert not list(project.glob(".engine-old"))
        return "whole"

    kill_each(state, "update", str(new.parent))


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_a_killed_update_of_a_project_without_the_engine(project: Path, tmp_path: Path, version: str) -> None:
    """Also one that keeps its version, and with it the name of its wheel."""
    new = make_engine(tmp_path / "new/engine", version, 2)
    built = sources.build(project / "engine", tmp_path / "built")
    engine.place(built, project)
    shutil.rmtree(project / "engine")

    def state() -> str:
        assert whole_install(project) in ("0.1.0", version)
        run("update", str(new.parent))
        return whole_install(project)

    kill_each(state, "update", str(new.parent))


def test_a_source_that_is_damaged_or_another_package_is_refused(project, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(project)
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(b"\x1f\x8b" + bytes(100))
    other = make_engine(tmp_path / "other/engine", "0.1.0")
    (other / "pyproject.toml").write_text(PROJECT.format(version="1").replace("train-anywhere", "something"))
    before = digest(project / "engine")
    for source, says in ((broken, "can't be unpacked"), (other, "does not name train-anywhere")):
        assert engine.main(["update", str(source)]) == 2
        said = capsys.readouterr().err
        assert says in said and said.count("\n") == 1
    assert digest(project / "engine") == before
