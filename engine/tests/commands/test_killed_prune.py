"""`jobs.py prune` is killed at each file operation: the rest is whole or hidden."""

import contextlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.tests.confined import confined, works
from engine.tests.killed import run_killed
from train_anywhere.commands import jobs
from train_anywhere.files import ENGINE, ROOT
from train_anywhere.runs.folder import RunDir, create


def make(results: Path, run_id: str) -> RunDir:
    run = create(results, "digits", run_id)
    run.config.touch()
    for name in ("checkpoints/00000001/model", "tensorboard/events", "report.html"):
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        (run.path / name).write_text("x")
    run.update(state="completed", started="2026-01-01T00:00:00+00:00")
    return run


def ask(results: Path, *words: str) -> tuple[int, str]:
    with io.StringIO() as text, contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        return jobs.main([*words, "--results", str(results)]), text.getvalue()


def kill_each(folder: Path) -> None:
    """Kill, look and prune again. Print the number of kills that left a whole run or none."""
    results, at, found = folder / "results", 0, {"whole": 0, "hidden": 0}
    while True:
        at += 1
        shutil.rmtree(results, ignore_errors=True)
        first, kept = make(results, "20260101-000000-aaaa"), make(results, "20260101-000001-bbbb")
        files = sorted(str(p) for p in first.path.rglob("*"))
        words = ["prune", first.id, "--yes", "--results", str(results)]
        if not run_killed(lambda words=words: jobs.main(words), results, at)[0]:
            break
        code, listed = ask(results, "list")
        assert code == 0 and kept.id in listed and (first.id in listed) == first.path.exists(), listed
        found["whole" if first.path.exists() else "hidden"] += 1
        if first.path.exists():
            assert sorted(str(p) for p in first.path.rglob("*")) == files
            assert ask(results, "prune", first.id, "--yes")[0] == 0
        else:
            assert "kept: " not in ask(results, "prune", "--until", "20200101", "--yes")[1]
        assert sorted(p.name for p in (results / "digits").iterdir()) == [kept.id]
    print(f"{at - 1} kills: {found}")
    assert found["whole"] and found["hidden"] > 5


def test_a_killed_prune(tmp_path: Path) -> None:
    if not works(tmp_path):
        pytest.skip("needs root: `prune` runs where only its folder can be written")
    code = f"from engine.tests.commands.test_killed_prune import kill_each, Path; kill_each(Path({str(tmp_path)!r}))"
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TRAIN_ROOT": str(ROOT)}
    environ["PYTHONPATH"] = f"{ROOT}:{ENGINE}"
    done: subprocess.CompletedProcess[str] = confined(tmp_path, [sys.executable, "-c", code], env=environ)
    assert done.returncode == 0 and "kills: " in done.stdout, done.stdout + done.stderr
    print(done.stdout)
