"""Hydra programs without a project as real Slurm jobs: `hydra/launcher=anywhere`."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from engine.tests.slurm.login import Login, log, wait_for
from tools.testing.processes import run_python
from tools.testing.weights import info
from train_anywhere.files import with_engine

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

BASIC = """
import logging, os, time
from pathlib import Path
import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_original_cwd

log = logging.getLogger(__name__)

@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg):
    h = HydraConfig.get()
    data = Path("data/numbers.txt").read_text()
    log.info("member %s %s", h.job.num, h.job.override_dirname)
    print("seen", [cfg.text, os.environ["MINE"], get_original_cwd(), data, str(Path(h.runtime.output_dir))], flush=True)
    state = Path(h.runtime.output_dir, "state")
    if cfg.slow and cfg.db.port == 2 and not Path(get_original_cwd(), "mended").exists():
        raise ValueError("it fails, 'at once'")
    if cfg.slow and cfg.db.port == 1 and not state.exists():
        state.touch()
        print("waiting", flush=True)
        time.sleep(100)
    return cfg.db.port * 2

if __name__ == "__main__":
    main()
"""
CONFIG = """
defaults: [db: mysql, _self_]
text: none
slow: false
hydra:
  job: {env_set: {MINE: mine}}
  callbacks: {seen: {_target_: seen.Seen}}
"""
CALLBACK = """
from pathlib import Path
from hydra.experimental.callback import Callback

class Seen(Callback):
    def on_multirun_start(self, config, **kwargs):
        with open("multirun_started", "a") as file:
            file.write("x")
    def on_job_end(self, config, job_return, **kwargs):
        Path(config.hydra.runtime.output_dir, "callback").write_text(job_return.status.name)
"""
STRUCTURED = """
import os
from dataclasses import dataclass, field
import hydra
from hydra.core.config_store import ConfigStore

@dataclass
class Db:
    port: int = 3306

@dataclass
class Config:
    db: Db = field(default_factory=Db)
    fail: bool = False

ConfigStore.instance().store(name="config", node=Config)

@hydra.main(version_base=None, config_name="config")
def main(cfg: Config) -> float:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
    print("rank", *(os.environ.get(name) for name in names), flush=True)
    if cfg.fail:
        raise ValueError("it fails")
    return float(cfg.db.port)

if __name__ == "__main__":
    main()
"""
SWEEPER = """
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

class TwoRounds(Sweeper):
    def setup(self, *, hydra_context, task_function, config):
        self.launcher = Plugins.instance().instantiate_launcher(hydra_context=hydra_context, task_function=task_function, config=config)
    def sweep(self, arguments):
        first = self.launcher.launch([[*arguments, f"db.port={n}"] for n in (1, 3)], 0)
        best = max(one.return_value for one in first)
        [last] = self.launcher.launch([[*arguments, f"db.port={int(best) + 4}"]], 2)
        print("rounds", [one.return_value for one in (*first, last)])

ConfigStore.instance().store(group="hydra/sweeper", name="rounds", node={"_target_": "hydra_plugins.rounds.TwoRounds"})
"""
LAUNCHER = ("hydra/launcher=anywhere", "hydra.launcher.cluster=slurm", "hydra.launcher.accelerator=cpu")


@pytest.fixture
def app(login: Login) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Write programs into the shared folder; return how one is started on the login node."""
    folder = login.folder / "programs"
    files = {
        "app.py": BASIC, "structured.py": STRUCTURED, "seen.py": CALLBACK, "conf/config.yaml": CONFIG, "conf/db/mysql.yaml": "port: 1",
        "conf/db/other.yaml": "port: 2", "data/numbers.txt": "123", "hydra_plugins/rounds.py": SWEEPER,
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    login.results = folder / "results"

    def start(*words: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        environ = with_engine(login.testbed.env() | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)})
        environ.pop("TRAIN_ROOT", None)
        done = run_python(*words, cwd=folder, env=environ)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return start


def job_of(text: str) -> str:
    found = re.search(r"Submitted job (\d+)", text)
    assert found, text
    return found[1]


def test_an_array_of_four_one_killed_one_failed(
    app: Callable[..., "subprocess.CompletedProcess[str]"], login: Login
) -> None:
    """Hydra's files of each member are those of its own launcher; a member that failed is resubmitted alone."""
    text = """text="a b, $HOME {x}: 'c'\""""
    here = login.folder / "programs"
    app("app.py", "-m", "hydra.sweep.dir=own", "db=mysql,other", text)
    job = job_of(
        app(
            "app.py", "-m", *LAUNCHER, "hydra.sweep.dir=theirs", "db=mysql,other", "slow=false,true", text
        ).stdout
    )
    runs = sorted(p.parent for p in login.results.glob("*/*/jobs.txt"))
    assert len(runs) == 4
    wait_for(lambda: "waiting" in log(runs[1]), runs[1], 120)
    login.testbed.run(["scancel", "--signal=USR1", "--batch", f"{job}_1"])
    wait_for(lambda: info(runs[1])["state"] == "completed", runs[1], 120)
    wait_for(lambda: info(runs[3])["state"] == "failed", runs[3], 60)
    (here / "mended").touch()
    assert log(runs[1]).count("seen") == 2 and info(runs[1])["restarts"] == 1
    assert (
        app("-m", "train_anywhere", "resubmit", "--failed", runs[0].name[:-2]).stdout.count("Submitted") == 1
    )
    wait_for(lambda: info(runs[3])["state"] == "completed", runs[3], 120)
    listed = app("-m", "train_anywhere", "list").stdout
    assert listed.count("completed") == 4 and "slow=True" in listed
    seen = [eval(re.findall(r"^seen (.*)$", log(run), re.M)[-1]) for run in runs]
    assert seen == [
        ["""a b, $HOME {x}: 'c'""", "mine", str(here), "123", str(here / "theirs" / str(n))] for n in range(4)
    ]
    assert [p.read_text() for p in login.results.glob("*/*/code/**/multirun_started")] == ["xx"]
    for ours, theirs in ((0, 0), (2, 1)):
        own, member = here / "own" / str(theirs), here / "theirs" / str(ours)
        assert (member / "callback").read_text() == (own / "callback").read_text() == "COMPLETED"
        assert f"member {ours} " in (member / "app.log").read_text()
        assert (member / ".hydra" / "config.yaml").read_text() == (own / ".hydra" / "config.yaml").read_text()
        assert hydra_yaml(member) == hydra_yaml(own) | {"num": ours}


def hydra_yaml(folder: Path) -> dict[str, object]:
    """What a program may read of Hydra's configuration, without what names the launcher."""
    tree = yaml.safe_load((folder / ".hydra" / "hydra.yaml").read_text())["hydra"]
    job, runtime = tree["job"], tree["runtime"]
    name = job["override_dirname"].replace(",slow=False", "")
    choices = {k: v for k, v in runtime["choices"].items() if k != "hydra/launcher"}
    kept = {k: tree[k] for k in ("mode", "run", "verbose", "job_logging", "callbacks", "output_subdir")}
    return {
        **kept,
        "name": job["name"],
        "dirname": name,
        "num": job["num"],
        "cwd": runtime["cwd"],
        "choices": choices,
    }


def test_a_sweeper_gets_what_members_return(app: Callable[..., "subprocess.CompletedProcess[str]"]) -> None:
    """The two members of the first round share a job."""
    words = ("hydra.launcher.members_per_node=2", "hydra.launcher.wait=true")
    done = app("structured.py", "-m", *LAUNCHER, "hydra/sweeper=rounds", *words)
    assert "rounds [1.0, 3.0, 7.0]" in done.stdout
    done = app("structured.py", "-m", *LAUNCHER, "hydra.launcher.wait=true", "fail=true", code=1)
    assert "ValueError: it fails" in done.stderr and "Traceback" not in done.stderr
    done = app("structured.py", "-m", *LAUNCHER, "hydra/sweeper=rounds", code=2)
    assert "hydra.launcher.wait=true" in done.stderr
    best = app("-m", "train_anywhere", "best", "--metric", "objective", "--mode", "max").stdout
    assert best.startswith("objective 7")


@pytest.mark.parametrize(
    ("processes", "seen"),
    [("auto", {"0 4 0 2 0", "1 4 1 2 0", "2 4 0 2 1", "3 4 1 2 1"}), ("node", {"0 2 0 1 0", "1 2 0 1 1"})],
)
@pytest.mark.slow
def test_ranks_on_two_nodes(
    app: Callable[..., "subprocess.CompletedProcess[str]"], login: Login, processes: str, seen: set[str]
) -> None:
    where = ("hydra.launcher.nodes=2", "hydra.launcher.devices=2", f"hydra.launcher.processes={processes}")
    app("structured.py", "-m", *LAUNCHER, *where, "hydra.launcher.wait=true")
    [run] = [p.parent for p in login.results.glob("*/*/jobs.txt")]
    assert {*re.findall(r"rank ((?:\d ){4}\d)", log(run))} == seen, log(run)
    assert json.loads(
        next((login.folder / "programs" / "multirun").glob("*/*/.anywhere/0.json")).read_text()
    ) == {"value": 3306.0}
