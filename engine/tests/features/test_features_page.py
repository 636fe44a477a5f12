"""docs/how-to/add-a-feature.md: its example in a project, and lists that can't work."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.testing.projects import copy_project
from train_anywhere.files import ROOT

PAGE = (ROOT / "docs/how-to/add-a-feature.md").read_text()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project with the files of the page."""
    project = copy_project(tmp_path_factory.mktemp("features"))
    blocks = dict(re.findall(r"```\w+ title=\"([\w./]+)\"\n(.*?)```", PAGE, re.S))
    listed = blocks.pop("configs/train.yaml")
    for name, text in blocks.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    config = project / "configs" / "train.yaml"
    config.write_text(config.read_text() + listed)
    return project


def run(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=project, capture_output=True, text=True, timeout=600)


FULL = "features.disk_space.least_gib=1e9"


def test_the_example_trains_submits_and_reports(project: Path) -> None:
    done = run(project, "src/train.py", "trainer.max_steps=10", "trainer.log_every_n_steps=5", FULL)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("GiB free at step 5") == 1 and done.stdout.count("Free space on ") == 1
    assert "Free space:  " in run(project, "src/jobs.py", "status").stdout
    assert "<th>Free space</th>" in (project / "results" / "latest" / "report.html").read_text()
    for words in ((), ("dry_run=true",)):
        done = run(project, "src/train.py", "cluster=slurm", *words, FULL)
        assert done.returncode == 2 and "disk_space.least_gib=1000000000.0; make room there" in done.stderr
    assert " --features " in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("features.disk_space.least=3", "'features.disk_space.least' is not an argument of src.features.disk_space.DiskSpace"),
        ("+features.stage._target_=src.features.disk_space.DiskSpace", "features.stage: stage is a feature of the engine"),
        ("+features.mine._target_=collections.OrderedDict", "must be a class in a file of this project"),
        ("+features.mine={_target_:src.features.disk_space.Watch,least_gib:1,folder:x,prints:false}", "a feature is a subclass of"),
        ("+features.mine._target_=src.features.nothing", "features.mine._target_=src.features.nothing"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_what_is_no_feature_is_one_message(project: Path, words: str, says: str, cluster: str) -> None:
    done = run(project, "src/train.py", f"cluster={cluster}", "dry_run=true", *words.split())
    assert done.returncode == 2 and done.stderr.count("error:") == 1, done.stderr + done.stdout
    assert says in done.stderr
