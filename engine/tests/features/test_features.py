"""Members of a sweep that may share a script, and errors of a project's feature."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.testing.processes import run_python
from tools.testing.projects import copy_project
from train_anywhere import features
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.features import Feature, Features
from train_anywhere.features.feature import Observer, Observers, Rank
from train_anywhere.files import ROOT
from train_anywhere.inference.trained_model import use_one_device
from train_anywhere.monitor.run_facts import Facts
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.submission.prepare import common_job, placeholder_job

MakeConfig = Callable[..., Config]
MINE = f"{__name__}.Mine"


class Mine(Feature):
    """A feature that fails wherever it can."""

    def rows(self, run: Any, info: Any) -> Any:
        """Fail."""
        raise RuntimeError("no rows")

    def verdicts(self, facts: Any) -> Any:
        """Fail."""
        raise RuntimeError("no verdicts")


@pytest.mark.parametrize(
    "key",
    [
        "trainer.detect_nan=off,warn,stop", "monitor.sample_seconds=5,10", "monitor.serve=true,false",
        "checkpoint.every_n_steps=10,null", "name=a,b",
    ],
)  # fmt: skip
def test_members_that_differ_in_nothing_of_the_script_share_it(make_config: MakeConfig, key: str) -> None:
    name, _, values = key.partition("=")
    members = [make_config("cluster=slurm", f"{name}={value}") for value in values.split(",")]
    job = common_job([placeholder_job(c, None, range(len(members))) for c in members])
    folder = "sweep" if name == "name" else members[0].name
    assert job.name == folder and job.run == f"{members[0].paths.results}/{folder}/<run id>"
    assert job.code == f"{job.run}/code"


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("data.stage=true,false", "a feature around the ranks"),
        ("cluster.retries=0,1", "cluster"),
        ("paths.results=/a,/b", "paths.results"),
        ("trainer.nodes=1,2", "ranks"),
    ],
)
def test_members_that_need_another_script_are_refused_by_name(make_config, key, says):
    name, _, values = key.partition("=")
    words = ["cluster=slurm", "data=imagefolder"]
    jobs = [placeholder_job(make_config(*words, f"{name}={v}"), None, range(2)) for v in values.split(",")]
    with pytest.raises(ConfigError, match=f"these differ in [^:]*{says}"):
        common_job(jobs)


def test_a_folder_above_that_has_the_name_of_the_run_is_left(make_config: MakeConfig, tmp_path: Path) -> None:
    results = tmp_path / "a" / "results"
    configs = [make_config("cluster=slurm", f"paths.results={results}", f"name={name}") for name in "ab"]
    assert (
        common_job([placeholder_job(c, None, range(2)) for c in configs]).run == f"{results}/sweep/<run id>"
    )


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """`listed("mine: {_target_: ...}")`: what configs/train.yaml of a project lists."""
    (tmp_path / "configs").mkdir()
    monkeypatch.setattr(features, "ROOT", tmp_path)
    monkeypatch.setattr(features, "_in_project", lambda dotted: True)
    return lambda text: (tmp_path / "configs" / "train.yaml").write_text(text) and None


def test_a_status_is_shown_whatever_a_feature_does(listed: Callable[[str], None], tmp_path: Path) -> None:
    built_in = [one.name for one in features.known()]
    for broken in ("", "a: 1", "features: 3", "features: [", "features: {x: 3, y: {_target_: no.such.Name}}"):
        listed(broken)
        assert [one.name for one in features.known()] == built_in
    listed(f"features: {{x: {{_target_: no.such.Name}}, mine: {{_target_: {MINE}}}}}")
    assert [one.name for one in features.known()] == [*built_in, "mine"]
    sentences, rows = features.describe(Facts({}, {}, run=RunDir(tmp_path)))
    assert rows == {"features.mine": "RuntimeError: no rows"}
    assert sentences == ["features.mine: RuntimeError: no verdicts"]


def test_an_evaluation_runs_no_feature_that_a_run_folder_names(make_config: MakeConfig) -> None:
    config = make_config(f"+features.mine._target_={MINE}")
    assert "mine" in Features.of(config) and "mine" not in Features.of(use_one_device(config))


@pytest.mark.parametrize("dotted", ["json.JSONEncoder", "site.main", "docs.x", "nothing"])
def test_only_files_of_the_project_are_features(dotted, monkeypatch, tmp_path):
    (tmp_path / "site").mkdir()  # as mkdocs makes it; Python has a module of that name
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(features, "ROOT", tmp_path)
    assert not features._in_project(dotted)


@pytest.mark.parametrize(
    "words", [["monitor.serve_address=0.0.0.0"], ["monitor.serve=true", "trainer.fast_dev_run=true"]]
)
def test_nothing_to_serve_needs_no_process_on_the_nodes(make_config: MakeConfig, words: list[str]) -> None:
    assert not Features.of(
        make_config("monitor.sample_seconds=null", "monitor.hang_minutes=null", *words)
    ).on_node


def test_each_restart_is_shown_in_its_parts(tmp_path: Path) -> None:
    """The seconds of the running attempt are known as soon as its first batch is done."""
    run = RunDir(tmp_path)

    def rows(*attempts: Any) -> dict[str, str]:
        return features.describe(Facts({"attempts": [*attempts]}, {}, run=run))[1]

    failed = {"started": "2026-11-27T10:00:00+00:00", "restart": {"detect": 0.04, "stop": 1.26}}
    seconds = {"before": 0.5, "start": 1.0, "step": 9.0, "first": 0.2, "silent": 0.0}
    done = {**failed, "from_step": 20, "seconds": seconds}
    newest = {"started": "2026-11-27T10:01:00+00:00", "from_step": 30}
    shown = rows(failed, done, newest)["Restarts"]
    assert shown == (
        "2: step 20: detect 0.0 s, stop 1.3 s, start 1.5 s, first step 0.2 s; step 30: detect 0.0 s, stop 1.3 s"
    )
    (tmp_path / "monitor").mkdir()
    times = {"until": "2026-11-27T10:01:09+00:00", "seconds": seconds}
    (tmp_path / "monitor" / "times.json").write_text(json.dumps(times))
    shown = rows(done, newest)["Restarts"]
    assert shown == "1: step 30: detect 0.0 s, stop 1.3 s, start 1.5 s, first step 0.2 s"
    assert "Restarts" not in rows(newest) and "Restarts" not in rows()


class Every53(Feature):
    """Writes each step that it wants, every 53rd, into the run folder."""

    def observer(self, rank: Rank) -> Observer:
        return Notes(rank.run.path / "steps.txt")


class Notes(Observer):
    def __init__(self, file: Path) -> None:
        self.file = file

    def next_step(self, step: int) -> int:
        return (step // 53 + 1) * 53

    def at_step(self, step: int) -> bool:
        with open(self.file, "a") as file:
            file.write(f"{step}\n")
        return step > 100


def ten_steps_per_call() -> Any:
    """Return a model of Keras for digits."""
    import keras

    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=None, loss=loss, steps_per_execution=10)
    return model


@pytest.mark.parametrize(
    "words",
    [
        ("framework=lightning", "model=mlp"),
        ("framework=keras", "model=mlp"),
        ("framework=keras", "data=digits", "task=custom", f"task._target_={__name__}.ten_steps_per_call"),
    ],
    ids=["lightning", "keras", "ten steps per call"],
)
@pytest.mark.quick("lightning", "keras")
def test_a_feature_gets_every_53rd_of_quick_steps(train: Callable[..., Any], tmp_path: Path, words) -> None:
    options = ("data.batch_size=8", "trainer.limit_train_batches=120", "trainer.max_epochs=2")
    feature = f"+features.every._target_={__name__}.Every53"
    done = train(*words, *options, feature, "trainer.accelerator=cpu", f"paths.results={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "latest" / "steps.txt").read_text().split() == ["53", "106", "159", "212"]


def test_every_wanted_step_is_reached_once_with_several_steps_in_a_call(tmp_path: Path) -> None:
    for size in (1, 10, 60):
        one = Notes(tmp_path / f"{size}")
        observers = Observers([one, Observer()])
        observers.start(0)
        due = [step for step in range(size, 241, size) if observers.reach(step)]
        assert one.file.read_text().split() == ["53", "106", "159", "212"]
        assert len(due) == 3
    resumed = Notes(tmp_path / "resumed")
    observers = Observers([resumed])
    observers.start(110)
    assert observers.reach(160) and observers.reach(160) and resumed.file.read_text() == "159\n"


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
    return run_python(*words, cwd=project, timeout=600)


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
    ("cluster", "words", "says"),
    [
        ("local", "features.disk_space.least=3", "'features.disk_space.least' is not an argument of src.features.disk_space.DiskSpace"),
        ("slurm", "+features.stage._target_=src.features.disk_space.DiskSpace", "features.stage: stage is a feature of the engine"),
        ("local", "+features.mine._target_=collections.OrderedDict", "must be a class in a file of this project"),
        ("slurm", "+features.mine={_target_:src.features.disk_space.Watch,least_gib:1,folder:x,prints:false}", "a feature is a subclass"),
        ("slurm", "+features.mine._target_=src.features.nothing", "features.mine._target_=src.features.nothing"),
    ],
)  # fmt: skip
def test_what_is_no_feature_is_one_message(project: Path, cluster: str, words: str, says: str) -> None:
    done = run(project, "src/train.py", f"cluster={cluster}", "dry_run=true", words)
    assert done.returncode == 2 and done.stderr.count("error:") == 1, done.stderr + done.stdout
    assert says in done.stderr
