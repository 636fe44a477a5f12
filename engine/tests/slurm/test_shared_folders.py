"""Folders below a node's own disk are refused before a submission, doubtful ones noted."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.tests.slurm.fakes import Fakes
from tools.testbed.testbed_cluster import Testbed
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, SubmitError
from train_anywhere.files import ROOT
from train_anywhere.slurm import rules
from train_anywhere.slurm.rules import local_rules
from train_anywhere.slurm.rules.job_rules import Request
from train_anywhere.slurm.script.job import Job
from train_anywhere.slurm.status import find_runs
from train_anywhere.slurm.submission.allocation import Allocation, is_only_node
from train_anywhere.slurm.submission.prepare import placeholder_job
from train_anywhere.slurm.submission.submit import resubmit
from train_anywhere.training.preflight import data_problems

MakeConfig = Callable[..., Config]


@pytest.fixture(autouse=True)
def no_testbed(shared_project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the folder on PATH that makes the other tests run in a checkout below /tmp."""
    monkeypatch.setenv("PATH", shared_project)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The place of the nodes' own disk."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


@pytest.fixture
def find(make_config: MakeConfig, disk: Path, tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """Return a function for the problem and the notes of a job's folders."""

    def found(*words: str, on_node: bool = False) -> tuple[str, str]:
        usual = (f"cluster.local_disk={disk}", f"paths.results={tmp_path}/results")
        config = make_config("cluster=slurm", *usual, *words)
        request = Request(config, placeholder_job(config, None, None), data_problems, on_node=on_node)
        problems = [*local_rules.own_disk(request)]
        assert len(problems) <= 1
        assert {*problems} <= {*rules.problems(request)}
        return "".join(problems), "".join(local_rules.maybe_private(request))

    return found


RESULTS, TOP = "paths.results={disk}/results", str(Path(sys.prefix).parent)
APPTAINER = "container=apptainer container.image="
FOUND: list[tuple[str, tuple[str, ...], str]] = [
    ("", (), ""),
    (RESULTS, ("the folder of the results ({disk}/results) is below cluster.local_disk={disk}", "paths.results=FOLDER"), ""),
    # links are followed and lie on a disk themselves
    ("paths.results={tmp}/link/results", ("(if all nodes share",), ""),
    ("paths.results={disk}/away/results", ("(if all nodes share",), ""),
    (f"cluster.local_disk={{tmp}}/link {RESULTS}", ("is below",), ""),
    # a variable in the nodes' disk
    (f"cluster.local_disk={{tmp}}/$MINE {RESULTS}", ("is below",), ""),
    (f"cluster.local_disk={{tmp}}/$SLURM_NOT_HERE {RESULTS}", (), ""),
    # the environment, and the Python that supervises the job outside of a container
    (f"cluster.local_disk={TOP}", (f"the Python environment ({sys.prefix}) is below", "cluster.venv=FOLDER"), ""),
    (f"cluster.local_disk={TOP} cluster.setup=[tar]", (f"the Python that submits ({sys.prefix}) is below",), ""),
    (f"cluster.local_disk={TOP} {APPTAINER}docker://x", (f"the Python that submits ({sys.prefix}) is below",), ""),
    (
        f"cluster.local_disk={TOP} paths.results={TOP}/results",
        (f"({TOP}/results) and the Python environment ({sys.prefix}) are below", "or use paths.results=FOLDER cluster.venv=FOLDER"), "",
    ),
    # only the nodes have it, or this machine too
    ("cluster.venv={disk}/there", (), ""),
    ("cluster.venv={disk}/venv", ("cluster.venv ({disk}/venv) is below",), ""),
    (f"{APPTAINER}{{disk}}/image.sif", ("the image ({disk}/image.sif) is below",), ""),
    ("data=imagefolder data.dir={disk}/there", (), ""),
    ("data=imagefolder data.dir={disk}/venv", (), "the data set ({disk}/venv) is below {disk}"),
    (
        "cluster.local_disk=$SLURM_TMPDIR paths.results=/tmp/results", (),
        "(/tmp/results) is below /tmp, and nodes usually have their own /tmp",
    ),
]  # fmt: skip
"""Keys of a job, parts of the problem, and a part of the notes."""


@pytest.mark.parametrize(("words", "problem", "note"), FOUND)
def test_folders_on_a_disk_of_the_nodes(
    find, disk: Path, tmp_path: Path, monkeypatch, words: str, problem: tuple[str, ...], note: str
) -> None:
    monkeypatch.setenv("MINE", disk.name)
    (tmp_path / "link").symlink_to(disk)
    (tmp_path / "shared").mkdir()
    (disk / "away").symlink_to(tmp_path / "shared")
    (disk / "venv").mkdir()
    (disk / "image.sif").touch()
    found, noted = find(*words.format(disk=disk, tmp=tmp_path).split())
    assert all(part.format(disk=disk) in found for part in problem) and bool(found) == bool(problem)
    assert note.format(disk=disk) in noted and bool(noted) == bool(note)
    assert "venv" in words or TOP in words or "cluster.venv" not in found


def test_a_folder_of_path_that_can_t_be_looked_into_is_no_trouble(
    find, shared_project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may be another user's. Root may read all, but a name can be too long."""
    monkeypatch.setenv("PATH", f"/{'x' * 300}/bin:{shared_project}")
    assert find() == ("", "")


@pytest.mark.slurm
def test_what_a_testbed_shows_to_its_nodes_is_shared(
    find, testbed: Testbed, shared_dir: Path, disk: Path, monkeypatch
) -> None:
    """A login node has the commands on PATH. Other folders on the nodes' disk are refused too."""
    below = (f"cluster.local_disk={shared_dir.parents[1]}", f"paths.results={shared_dir}/results")
    assert find(*below)[0]
    monkeypatch.setenv("PATH", testbed.env()["PATH"])
    assert find(*below) == ("", "")
    assert find(f"cluster.local_disk={ROOT}") == ("", "")
    assert find(f"paths.results={disk}/results")[0]
    login = testbed.run(["cat", f"/{local_rules.SHARED_BY_TESTBED}"]).stdout.split()
    assert {str(ROOT), str(testbed.dir), str(shared_dir.parent)} == {*login}


def test_the_run_that_a_job_starts_from(find, disk: Path, tmp_path: Path, make_config: MakeConfig) -> None:
    """The run of `init=` is not named by `paths.results`."""
    config = make_config("cluster=slurm", f"cluster.local_disk={disk}", f"paths.results={tmp_path}/results")
    begun = replace(config, init=replace(config.init, run=f"{disk}/results/digits/1"))
    request = Request(begun, placeholder_job(begun, None, None), data_problems)
    [problem] = local_rules.own_disk(request)
    assert (
        f"the run of init= ({disk}/results/digits/1) is below" in problem and "paths.results" not in problem
    )


def test_a_job_on_this_node_shares_nothing(find, disk: Path, make_config: MakeConfig) -> None:
    assert find(f"paths.results={disk}/results", on_node=True) == ("", "")
    config = make_config("cluster=slurm")
    job: Job = placeholder_job(config, None, None)
    here = Allocation("7", 1)
    assert is_only_node(job, here, {"SLURMD_NODENAME": "node1"})
    assert not is_only_node(job, here, {})  # salloc on a login node
    assert not is_only_node(job, None, {"SLURMD_NODENAME": "node1"})


@pytest.mark.needs_root
def test_a_mounted_folder_below_the_disk_is_noted(find, disk: Path, small_disk: Path) -> None:
    mounted = disk / "mounted here"
    mounted.mkdir()
    subprocess.run(["mount", "--bind", str(small_disk), str(mounted)], check=True)
    try:
        problem, note = find(f"paths.results='{mounted}/results'")
    finally:
        subprocess.run(["umount", str(mounted)], check=True)
    assert problem == ""
    assert f"the folder of the results ({mounted}/results) is below {disk}" in note


def test_nothing_is_submitted_or_resubmitted(disk: Path, fakes: Fakes) -> None:
    fakes.chain("exit 1", good=2)
    with pytest.raises(ConfigError, match=r"is below cluster\.local_disk"):
        fakes.submit(f"cluster.local_disk={fakes.results}")
    assert not fakes.asked("sbatch") and not fakes.results.exists()
    fakes.submit(f"cluster.local_disk={disk}")
    [run] = fakes.runs()
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace(f"local_disk: {disk}", f"local_disk: {fakes.results}"))
    with pytest.raises(SubmitError, match=r"is below cluster\.local_disk=.* use .*resume=FOLDER"):
        resubmit([find_runs.read_entry(run)], fakes.results, trust=False)
    assert len(fakes.asked("sbatch")) == 1
