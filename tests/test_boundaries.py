"""Who may import whom, read from the source; and what a start really loads, by `-X importtime`."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from src.files import ROOT

TORCH = {"torch", "lightning", "torchmetrics"}
TENSORFLOW = {"tensorflow", "keras"}
HEAVY = TORCH | TENSORFLOW | {"numpy", "scipy", "sklearn", "PIL", "horovod"}
TORCH_SIDE = ("src/training/lightning/", "src/models/lightning/", "src/tasks/lightning/", "src/data/torch_")
TENSORFLOW_SIDE = ("src/training/keras/", "src/models/keras/", "src/tasks/keras/", "src/data/tf_")
SOURCES = sorted(
    str(p.relative_to(ROOT)) for top in ("src", "slurm", "hydra_plugins") for p in (ROOT / top).rglob("*.py")
)


def side_of(name: str) -> str:
    """torch, tensorflow, data (neutral, may use numpy) or light."""
    if name.startswith(TORCH_SIDE):
        return "torch"
    if name.startswith(TENSORFLOW_SIDE):
        return "tensorflow"
    return "data" if name.startswith("src/data/") else "light"


def imports(name: str) -> set[str]:
    """Every module the file imports anywhere, functions included, as dotted names; imports for types alone are left out."""
    tree = ast.parse((ROOT / name).read_text())
    typing_only = {
        id(n)
        for b in ast.walk(tree)
        if isinstance(b, ast.If) and "TYPE_CHECKING" in ast.dump(b.test)
        for n in ast.walk(b)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} | {f"{node.module}.{a.name}" for a in node.names}
    return found


def forbidden(side: str) -> set[str]:
    return {
        "torch": TENSORFLOW,
        "tensorflow": TORCH,
        "data": TORCH | TENSORFLOW,
        "light": HEAVY,
    }[side]


@pytest.mark.parametrize("name", SOURCES)
def test_frameworks_stay_on_their_side(name: str) -> None:
    tops = {module.split(".")[0] for module in imports(name)}
    assert not tops & forbidden(side_of(name))


@pytest.mark.parametrize("name", SOURCES)
def test_sides_do_not_import_each_other(name: str) -> None:
    side = side_of(name)
    reached = {side_of(m.replace(".", "/") + ".py") for m in imports(name) if m.startswith("src.")}
    reached |= {side_of(m.replace(".", "/") + "/") for m in imports(name) if m.startswith("src.")}
    allowed = {"torch": {"torch", "data", "light"}, "tensorflow": {"tensorflow", "data", "light"}}
    assert reached <= allowed.get(side, {"data", "light"})


BASE = {
    "errors",
    "files",
    "marked",
    "removal",
    "client",
    "from_scratch",
    "history",
    "stop",
    "topology",
    "rundir",
    "publish",
    "checkpoint_store",
    "checkpoint_files",
    "checkpoint_worker",
    "retention",
    "staging",
    "lock",
    "mirror",
    "strict",
    "outcome",
    "plain_json",
    "hostlist",
    "starter_variables",
    "plain_zip",
    "limits",
    "paths",
    "folders",
}


@pytest.mark.parametrize("name", [f"src/{b}.py" for b in sorted(BASE) if (ROOT / f"src/{b}.py").exists()])
def test_the_ground_floor_knows_only_the_standard_library(name: str) -> None:
    known = {m for m in imports(name) if m.split(".")[0] not in sys.stdlib_module_names}
    assert {m.split(".")[1] for m in known if m.startswith("src.")} <= BASE
    assert {m.split(".")[0] for m in known} <= {"src"}


def test_slurm_and_data_do_not_know_the_entry() -> None:
    """The login-node side and the data sets are below the launcher and train.py."""
    for name in SOURCES:
        if name.startswith(("slurm/", "src/data/")) and "testbed" not in name:
            assert not {"src.train", "src.launch.processes", "src.launch.rank"} & imports(name), name


def loaded(arguments: list[str], env: dict[str, str] | None = None) -> set[str]:
    """Top-level modules that a command loads."""
    command = [sys.executable, "-X", "importtime", str(ROOT / "src" / "train.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.split("|")[-1].strip().split(".")[0] for line in lines}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--cfg", "job"], ["dry_run=true"], ["framework=keras", "dry_run=true"]]
)
def test_the_light_path_loads_no_framework(arguments: list[str]) -> None:
    modules = loaded(arguments)
    assert "hydra" in modules
    assert not modules & HEAVY


@pytest.mark.parametrize("framework, others", [("lightning", TENSORFLOW), ("keras", TORCH)])
def test_training_loads_one_framework(framework: str, others: set[str], tmp_path: Path) -> None:
    modules = loaded([f"framework={framework}", "experiment=debug", f"paths.results={tmp_path}"])
    assert not modules & others
    assert modules & (TORCH | TENSORFLOW)


def test_the_reader_of_imports_sees_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above can fail: imports inside functions are seen, those for types are not."""
    (tmp_path / "a.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import keras\ndef f():\n    import torch.nn\n"
    )
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert imports("a.py") == {"typing", "typing.TYPE_CHECKING", "torch.nn"}
