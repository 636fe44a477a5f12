"""What the user exported is what a program and a training see, with every preset."""

import dataclasses
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.slurm.scripts import run_script, snapshot
from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import Topology
from train_anywhere.files import ENGINE, ROOT
from train_anywhere.program.program_environment import build_environment
from train_anywhere.slurm.script.job import make_job
from train_anywhere.slurm.script.render import render

MakeConfig = Callable[..., Config]
OWN = {
    "HF_HOME": "/own hub",
    "TORCH_HOME": "/own/torch",
    "KERAS_HOME": "/own/keras",
    "NCCL_SOCKET_IFNAME": "own0",
    "HF_HUB_OFFLINE": "0",
    "OMP_NUM_THREADS": "3",
}
"""Variables that the user has exported."""

PRESETS = sorted(
    p.stem
    for p in (ENGINE / "train_anywhere/config/presets/cluster").glob("*.yaml")
    if p.stem not in ("current", "local")
)
OFFLINE = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"}
KINDS = {"training": (), "program": ("program.command=[examples/programs/main.py]",)}
LAST = 'supervise() { env -0 >"$SHOWN"; exit; }\n'


def seen(config: Config, folder: Path, environ: dict[str, str]) -> dict[str, str]:
    """Return the environment in which the script of a job starts its supervisor."""
    snapshot(folder)
    made = make_job(config, str(folder), str(folder))
    job = dataclasses.replace(made, cluster=dataclasses.replace(made.cluster, modules=[]))
    sourced = re.compile(r'^source "\$CODE/train_anywhere/job/start.sh" (\w+).*', re.M)
    clean = rf'source "$CODE/train_anywhere/job/clean.sh" \1; {LAST}'
    script, shown = sourced.sub(clean, render(job)), folder / "shown"
    base = {"PATH": os.environ["PATH"], "SHOWN": str(shown), "SLURM_JOB_ID": "7", "PBS_JOBID": "7.host"}
    base |= {"SLURM_TMPDIR": "/tmp", "TMPDIR": "/tmp", "SLURM_GPUS_ON_NODE": "1", "LOCAL_SCRATCH": "/tmp"}
    subprocess.run(["bash", "-c", script], env={**base, **environ}, check=True, timeout=30)
    return dict(one.split("=", 1) for one in shown.read_text().split("\0") if one)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.quick("narval-training", "narval-program", "slurm-training", "pbs-program")
def test_what_the_user_exported_arrives(
    make_config: MakeConfig, tmp_path: Path, preset: str, kind: str
) -> None:
    config = make_config(f"cluster={preset}", "cluster.check=warn", *KINDS[kind])
    own = seen(config, tmp_path, OWN)
    assert {name: own.get(name) for name in OWN} == OWN
    fresh = seen(config, tmp_path, {})
    cached = {"HF_HOME", "TORCH_HOME", "KERAS_HOME"} if config.cluster.cache else set()
    offline = OFFLINE if config.cluster.cache and kind == "training" else set()
    assert {*fresh} & {*cached, "HF_HOME", "TORCH_HOME", "KERAS_HOME", *OFFLINE} == cached | offline
    print(f"{preset} {kind}: " + " ".join(f"{n}={fresh.get(n, '(not set)')}" for n in list(OWN)[:4]))


@pytest.mark.parametrize("value", ["/a b", "/it's}", '/a"b', "/$(touch HACKED)", "/\\{x}"])
def test_odd_folders_of_the_cache_arrive(make_config: MakeConfig, tmp_path: Path, value: str) -> None:
    folder = tmp_path / value.lstrip("/")
    made = make_config("cluster=slurm")
    config = dataclasses.replace(made, cluster=dataclasses.replace(made.cluster, cache=str(folder)))
    assert seen(config, tmp_path, {})["TORCH_HOME"] == f"{folder}/torch"
    assert not Path("HACKED").exists()


IN_TABLE = re.compile(r"`([A-Z]\w+)`")


def table() -> set[str]:
    """Return the variables in the table of docs/how-to/any-program.md."""
    page = (ROOT / "docs/how-to/any-program.md").read_text()
    found = page.partition("## What the program finds")[2].partition("## ")[0]
    rows = [line.split(" | ")[0] for line in found.splitlines() if line.startswith("| ")]
    return {name for row in rows for name in IN_TABLE.findall(row)}


def missing(names: set[str]) -> set[str]:
    """Return the names that the table lacks. It has those of Horovod by their beginning."""
    shell = {"PWD", "OLDPWD", "SHLVL", "_", "SHOWN", "LC_CTYPE"}
    return {n for n in names - table() - shell if not n.startswith(("HOROVOD_", "SLURM_"))}


def test_the_table_has_what_a_job_adds(make_config: MakeConfig, tmp_path: Path) -> None:
    added = set[str]()
    for preset in PRESETS:
        words = (f"cluster={preset}", "cluster.check=warn", "cluster.cache=/c", *KINDS["program"])
        added |= {*seen(make_config(*words), tmp_path, {})}
        mpi = (*words, "launch=mpirun", "trainer.nodes=2")
        added |= {*seen(make_config(*mpi), tmp_path, {})}
    (tmp_path / "run").mkdir()
    ranks = f'case "$*" in *--run*) env -0 >{tmp_path}/ranks;; esac'
    environ = {"SLURM_JOB_NODELIST": "node[1-2]"}
    words = ("trainer.nodes=2", *KINDS["program"])
    run_script(make_config, tmp_path / "run", ranks, words=words, environ=environ)
    added |= {one.partition("=")[0] for one in (tmp_path / "ranks").read_text().split("\0") if one}
    assert {"TRAIN_HOSTS", "MASTER_ADDR", "HF_HOME"} <= added
    assert missing(added - {"SLURM_TMPDIR", "TMPDIR", "LOCAL_SCRATCH", "PBS_JOBID"}) == set()


@pytest.mark.parametrize("command", ["examples/programs/main.py", "torchrun x.py", "accelerate launch x.py"])
@pytest.mark.parametrize("processes", ["rank", "node", "one"])
def test_the_table_has_what_a_program_adds(
    make_run: Callable[..., tuple[Config, object]],
    monkeypatch: pytest.MonkeyPatch,
    processes: str,
    command: str,
) -> None:
    """Also on this machine: a variable that the user exported stays, one of the cache is added."""
    words = command.replace(" ", ",")
    monkeypatch.setattr("train_anywhere.program.program_environment.find_spec", lambda name: None)  # waits
    for name in OWN:
        monkeypatch.delenv(name, raising=False)
    config, run = make_run(
        f"program.command=[{words}]", f"program.processes={processes}", "cluster.cache=/c", "trainer.nodes=2"
    )
    monkeypatch.setattr(
        "train_anywhere.program.program_environment.ENVIRON", {"HF_HOME": "/own", "PATH": "/bin"}
    )
    environ = build_environment(config, Topology(0, 0, 0, 4, 2, 2), run, None)  # type: ignore[arg-type]
    assert missing({*environ}) == set()
    assert (environ["HF_HOME"], environ["TORCH_HOME"]) == ("/own", "/c/torch")


@pytest.mark.parametrize("kind", ["apptainer", "pyxis"])
def test_the_job_s_variables_win_over_those_of_an_image(
    make_config: MakeConfig, tmp_path: Path, kind: str
) -> None:
    image = tmp_path / "image.sif"
    image.touch()
    setup = '["export SITE=\'a,b\'","source $HOME/own.sh"]'
    words = (f"container={kind}", f"container.image={image}", f"cluster.setup={setup}", "cluster.cache=/c")
    (tmp_path / "own.sh").write_text("export FROM_FILE=1\n")
    (tmp_path / "run").mkdir()
    ranks = f'case "$*" in *--run*) echo "$*" >{tmp_path}/words; env -0 >{tmp_path}/ranks;; esac'
    environ = {
        "NCCL_SOCKET_IFNAME": "own0",
        "HF_HOME": "/own",
        "HOME": str(tmp_path),
        "CUDA_HOME": "/host/cuda",
    }
    run_script(make_config, tmp_path / "run", ranks, words=words, environ=environ)
    given = dict(one.split("=", 1) for one in (tmp_path / "ranks").read_text().split("\0") if one)
    if kind == "apptainer":
        inside = {
            k.removeprefix("APPTAINERENV_"): v for k, v in given.items() if k.startswith("APPTAINERENV_")
        }
    else:
        names = re.findall(r"--container-env=(\S+)", (tmp_path / "words").read_text())
        inside = {name: given[name] for name in names[0].split(",")}
    expected = {
        "SITE": "a,b",
        "FROM_FILE": "1",
        "NCCL_SOCKET_IFNAME": "own0",
        "HF_HOME": "/own",
        "TORCH_HOME": "/c/torch",
    }
    assert {name: inside.get(name) for name in expected} == expected
    assert {"PYTHONPATH", "OMP_NUM_THREADS", "MASTER_PORT", "TRAIN_HOSTS"} <= {*inside}
    assert not {"PATH", "LD_LIBRARY_PATH", "HOME", "CUDA_HOME"} & {*inside}
