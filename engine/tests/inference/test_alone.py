"""`load_model` in another folder with the engine installed: trusted runs use their own code."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tools.testing.processes import run_python
from train_anywhere.files import ROOT, with_engine
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.trust import remember, remember_script

from .conftest import SHORT, Trained

SCRIPT = """
import numpy as np
from train_anywhere.inference import load_model
model = load_model({run!r}{trust})
print(model.predict(np.zeros((2, 8, 8, 1), np.float32)).probabilities.shape, model.network.__class__.__name__)
import src.data
print(src.data.__file__)
"""


def run_alone(
    folder: Path, run: Path, trust: bool = False, **variables: str
) -> "subprocess.CompletedProcess[str]":
    folder.mkdir(exist_ok=True)
    (folder / "predict.py").write_text(SCRIPT.format(run=str(run), trust=", trust=True" if trust else ""))
    environ = {n: v for n, v in with_engine().items() if n != "TRAIN_ROOT"} | variables
    environ["XDG_STATE_HOME"] = str(folder / "state")  # with the record of what this user has run
    return run_python(folder / "predict.py", cwd=folder, env=environ)


@pytest.fixture
def with_code(trained: Trained) -> RunDir:
    """A run with the committed code, by the command of its page."""
    run, page = trained(*SHORT), (ROOT / "docs/how-to/use-a-trained-model.md").read_text()
    (command,) = re.findall("^mkdir results/latest/code.*", page, re.M)
    words = command.replace("results/latest", shlex.quote(str(run.path)))
    subprocess.run(words, shell=True, cwd=ROOT, check=True)
    return run


def test_code_of_a_run_is_used_if_the_user_trusts_it(with_code, tmp_path, monkeypatch) -> None:
    own = tmp_path / "own"
    refused = run_alone(own, with_code.path)
    last = refused.stderr.strip().splitlines()[-1]
    assert refused.returncode == 1 and "you have not run" in last and "trust=True" in last
    assert str(with_code.path / "code") in last
    expected = f"(2, 10) Sequential\n{with_code.path / 'code/src/data/__init__.py'}\n"
    allowed = run_alone(own, with_code.path, trust=True)
    assert allowed.stdout == expected, allowed.stderr
    monkeypatch.setenv("XDG_STATE_HOME", str(own / "state"))
    remember(with_code.path)
    (script := with_code.path / "job.sbatch").touch()
    remember_script(script)
    known = run_alone(own, with_code.path)
    assert known.stdout == expected, known.stderr
    (with_code.path / "code" / "src" / "numpy.py").write_text(
        "print('of another machine')\n"
    )  # as after a pull
    changed = run_alone(own, with_code.path)
    assert changed.returncode == 1 and "you have not run" in changed.stderr and not changed.stdout


def test_a_run_without_code_names_what_to_do(trained: Trained, tmp_path: Path) -> None:
    done = run_alone(tmp_path / "own", trained(*SHORT).path, trust=True)
    assert done.returncode == 1
    assert "has no code of its own" in done.stderr and "TRAIN_ROOT" in done.stderr


def test_a_program_elsewhere_names_the_project(trained: Trained, tmp_path: Path) -> None:
    done = run_alone(tmp_path / "own", trained(*SHORT).path, trust=True, TRAIN_ROOT=str(ROOT))
    assert done.returncode == 0 and done.stdout.startswith("(2, 10)"), done.stderr
