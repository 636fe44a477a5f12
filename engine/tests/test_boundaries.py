"""The allowed imports in rows, read from the source, a start's modules, and the public names of the engine.

The public names are on one page, documented, and all that the template imports.
"""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.testing.processes import run_python
from train_anywhere.__main__ import VERBS
from train_anywhere.files import ROOT

TORCH = {"torch", "lightning", "lightning_utilities", "torchmetrics"}
TENSORFLOW = {"tensorflow", "keras"}
FRAMEWORKS = TORCH | TENSORFLOW | {"horovod"}
TRACKERS = {"wandb", "mlflow"}
HEAVY = FRAMEWORKS | {"numpy", "scipy", "sklearn", "PIL", "tokenizers", "pyarrow"}

GROUND = {"errors", "files"}
LOWER = GROUND | {"config", "distributed", "runs"}
CONTENT = {"src.models", "src.data", "src.tasks"}
BASES = {"data", "tasks"}
LOOPS = LOWER | BASES | {"checkpoints", "monitor", "training", "features", "job"}
OF_MONITOR = {"psutil", "pynvml", "tensorboard", "jinja2", "pygal", "yaml"}
OF_COMMANDS = {"hydra", "omegaconf", "yaml", "matplotlib"}
SHARED = {"checkpoints", "data", "features", "job", "launch", "monitor", "tasks"}
FEATURES = {"features.each"}
"""Packages below features/, one for each. Only a template and a configuration name them."""
LOOP = {"training.lightning", "training.keras"}
EVERYTHING = LOOPS | LOOP | {"launch", "inference", "monitor", "program", "slurm"}
JOBS = {
    "config", "distributed", "errors", "features", "files", "job", "launch", "monitor", "program", "remote", "runs", "search", "slurm",
}  # fmt: skip
TRAINING = {"checkpoints", "data", "inference", "tasks", "training"}
COMMANDS_AND_PLUGINS = {"__main__", "commands", "plugins"}


class Row(NamedTuple):
    """The allowed imports of some packages: of this project, and outside the standard library."""

    rooms: set[str]
    may: set[str]
    packages: set[str]


ROWS = {
    "1 the ground knows the standard library and psutil": Row(GROUND, GROUND, {"psutil"}),
    "2 config knows no run, no rank, no framework; Hydra inside functions": Row({"config"}, GROUND, {"hydra", "omegaconf", "yaml"}),
    "3 distributed finds the rank's place, and imports no framework": Row({"distributed"}, GROUND | {"config"}, {"psutil"}),
    "4 data and tasks never import each other": Row(BASES, GROUND | {"config"}, HEAVY | {"rich", "psutil"}),
    "16 models, data and tasks of the project never import each other": Row(CONTENT, GROUND | BASES | {"config"}, HEAVY | {"rich"}),
    "17 commands of the project are a few lines each": Row({"src"}, {"commands", "training"}, set()),
    "5 runs is the run folder": Row({"runs"}, GROUND | {"config", "distributed"}, {"hydra", "yaml", "psutil"}),
    "18 features are called by way of one package": Row({"features"}, LOWER | {"monitor"}, {"yaml"}),
    "19 a feature knows no framework": Row(FEATURES, LOWER | {"features", "monitor"}, OF_MONITOR | {"optuna"}),
    "6 checkpoints are bytes in folders": Row({"checkpoints"}, GROUND | {"config", "runs"}, set()),
    "7 the shared rules of training are free of frameworks": Row({"training"}, LOWER | SHARED, TRACKERS | {"rich", "numpy"}),
    "8 the loops of the two frameworks never import each other": Row(
        LOOP, LOOPS, HEAVY | {"tensorboard", "peft", "safetensors", "onnxruntime"}
    ),
    "20 a program in place of a training": Row(
        {"program"}, LOWER | {"features", "job", "monitor"}, {"tensorboard", "psutil"}
    ),
    "9 launch runs on this machine": Row({"launch"}, LOWER | {"features", "job", "monitor", "program"}, set()),
    "21 the supervisor of a run imports no framework": Row({"job"}, LOWER | {"features", "features.each", "monitor", "slurm"}, set()),
    "10 slurm knows no launch, training, data, models, tasks": Row({"slurm"}, LOWER | {"features", "monitor"}, {"jinja2", "yaml", "rich"}),
    "11 Hydra's plugins are thin": Row({"plugins"}, {"errors", "config", "slurm", "launch", "search", "training"}, {"hydra", "omegaconf"}),
    "15 a search begins runs here or as jobs": Row({"search"}, LOWER | {"launch", "slurm"}, {"hydra"}),
    "13 what comes after training names no framework": Row({"inference"}, LOOPS | {"launch"}, {"numpy", "yaml"}),
    "14 monitor only observes, and names no framework": Row({"monitor"}, LOWER, OF_MONITOR),
    "22 another machine gets files and words": Row({"remote"}, LOWER | {"monitor", "slurm"}, {"yaml"}),
    "23 one program names the commands": Row({"__main__"}, {"errors", "files"}, set()),
    "12 the commands are the roof": Row({"commands"}, EVERYTHING | {"plugins", "remote", "search"}, OF_COMMANDS),
}  # fmt: skip
"""One row for each rule. What a row lists may be imported, anything else may not; no module imports a command."""


def sources() -> list[str]:
    """Return every module of project and engine without the fixtures of tests."""
    tops = ("src", "slurm", "hydra_plugins", "engine/train_anywhere")
    found = (str(p.relative_to(ROOT)) for top in tops for p in (ROOT / top).rglob("*.py"))
    return sorted(name for name in found if not name.startswith("engine/train_anywhere/testing/"))


def room(module: str) -> str:
    """Return the package: `runs` for `train_anywhere.runs.lock`, `src` for a command."""
    top, *names = module.split(".")
    if top == "src":
        return ".".join(["src", *names[:1]]) if f"src.{names[0] if names else ''}" in CONTENT else "src"
    if top == "train_anywhere":
        if names[:1] == ["features"]:  # what packages call, and what they do not know by name
            return "features" if names[1:] in ([], ["feature"]) else "features.each"
        framework = names[:1] == ["training"] and names[1:2] in (["lightning"], ["keras"])
        return ".".join(names[: 2 if framework else 1])
    return {"hydra_plugins": "plugins", "slurm": "src"}.get(top, top)


def module_of(name: str) -> str:
    return name.removesuffix(".py").replace("/", ".").removesuffix(".__init__").removeprefix("engine.")


class Import(NamedTuple):
    """An imported name and its place: at the top of the file, in a "function", or for "types"."""

    module: str
    line: int
    where: str


@cache
def imports(name: str) -> list[Import]:
    """Return every import of a file, including those in functions and for types."""

    def walk(node: ast.AST, where: str) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            if isinstance(child, ast.Import):
                yield from (Import(a.name, child.lineno, where) for a in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert not child.level and child.module, f"{name}:{child.lineno}: a relative import"
                for alias in child.names:
                    whole = f"{child.module}.{alias.name}"
                    yield Import(whole if is_module(whole) else child.module, child.lineno, where)
            yield from walk(child, "function" if function else "types" if for_types else where)

    return list(walk(ast.parse((ROOT / name).read_text()), "top"))


def is_module(dotted: str) -> bool:
    path = dotted.replace(".", "/")
    return any(
        (ROOT / top / f).is_file() for top in ("", "engine") for f in (f"{path}.py", f"{path}/__init__.py")
    )


def ours(module: str) -> bool:
    return module.split(".")[0] in ("src", "slurm", "hydra_plugins", "train_anywhere") and module not in TOPS


TOPS = ("src", "train_anywhere")
"""Packages that choose the backend of Keras, and nothing else."""


def test_rules() -> None:
    wrong = []
    for rule, row in ROWS.items():
        for name in sources():
            own = room(module_of(name))
            if own not in row.rooms:
                continue
            for found in imports(name):
                known = found.module.split(".")[0] in row.packages | sys.stdlib_module_names
                known |= found.module == "train_anywhere" or (found.module == "src" and own == "src")
                if not known and not (ours(found.module) and room(found.module) in {own, *row.may}):
                    wrong.append(f"{rule}: {name}:{found.line} imports {found.module}")
    assert wrong == []


def package(module: str) -> str:
    """Return the part of the engine that a module is in, or ""."""
    return module.split(".")[1] if module.startswith("train_anywhere.") else ""


def test_jobs_never_import_training() -> None:
    """The engine is two products: training imports the jobs, and only commands and plugins know both."""
    assert {package(module_of(name)) for name in sources()} - {""} == JOBS | TRAINING | COMMANDS_AND_PLUGINS
    assert [
        f"{name}:{i.line} imports {i.module}"
        for name in sources()
        for i in imports(name)
        if package(module_of(name)) in JOBS and package(i.module) in TRAINING
    ] == []


def test_every_module_is_in_a_room_of_the_table() -> None:
    rooms = {r for row in ROWS.values() for r in row.rooms}
    assert {room(module_of(name)) for name in sources()} - {""} == rooms


def edges() -> dict[str, set[str]]:
    """Which module of this project imports which, in functions and for types too."""
    return {
        module_of(name): {i.module for i in imports(name) if ours(i.module)} - {module_of(name)}
        for name in sources()
    }


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return a circular path of imports, or nothing."""
    done: set[str] = set()

    def follow(node: str, way: list[str]) -> list[str]:
        if node in way:
            return [*way[way.index(node) :], node]
        if node in done:
            return []
        found = next((f for n in sorted(graph.get(node, ())) if (f := follow(n, [*way, node]))), [])
        done.add(node)
        return found

    return next((found for node in sorted(graph) if (found := follow(node, []))), [])


def test_no_circle_of_modules() -> None:
    assert circle(edges()) == []


@pytest.mark.parametrize("part", [room, lambda module: ".".join(module.split(".")[:2])])
def test_no_circle_of_rooms_or_packages(part: Callable[[str], str]) -> None:
    parts: dict[str, set[str]] = {}
    for module, imported in edges().items():
        parts.setdefault(part(module), set()).update({part(i) for i in imported} - {part(module)})
    assert circle(parts) == []


REASONS = {
    "hydra": "a rank does without Hydra",
    "omegaconf": "a rank does without Hydra",
    "jinja2": "a run on this machine renders no script",
    "train_anywhere.launch.local_run": "a submission trains nothing here",
    "train_anywhere.search.loop": "a sweep is no search",
    "optuna": "only a trial needs it",
    "train_anywhere.data.recorded": "a submission reads no data, and needs no numpy",
    "train_anywhere.inference.predictor": "a submission predicts nothing, and needs no numpy",
    "train_anywhere.files": "its help needs no project",
    "train_anywhere.launch.rank": "a submission is not a rank",
    "train_anywhere.launch.processes": "a submission is no member of a sweep here",
    "train_anywhere.remote.connection": "a login node needs no ssh",
    "train_anywhere.remote.run_copies": "a verb here needs no ssh",
    "train_anywhere.remote.remote_command": "a command here needs no ssh",
    "train_anywhere.remote.sent_files": "a command here needs no ssh",
    "train_anywhere.distributed.packages": "a submission looks for Horovod where it is asked for",
    "train_anywhere.monitor.report.page": "its libraries are of no use before the end",
    "train_anywhere.slurm.status.sweep_page": "only a report needs its libraries",
    "rich": "a bar is drawn on a terminal only",
    "matplotlib": "a user of figures installs it",
    "train_anywhere.inference.evaluate_run": "an evaluation that is submitted imports no numpy",
    "numpy": "headers of a data set are read, and evaluations submitted, on the login node",
    "psutil": "only copies of a program's checkpoints need it",
    "PIL": "names of pictures are read on the login node",
    "torch": "TensorBoard's writer takes a second to import, and may be turned off",
    "tokenizers": "bytes are tokens without it",
    "pyarrow": "only Parquet needs it",
    "peft": "only model.lora needs it",
    "onnxruntime": "only an export to ONNX needs it",
    "safetensors": "only files of this format need it",
    "train_anywhere.training.prepare": "only the process that downloads imports a framework",
    "train_anywhere.data.shards.open": "a rank indexes shards only if it trains on them",
    "train_anywhere.data.shards.index": "a command's help needs no numpy",
    "wandb": "a tracker is imported where it is chosen",
    "mlflow": "a tracker is imported where it is chosen",
    "pynvml": "a machine without NVIDIA's driver does without",
    "tensorboard": "only a side process that writes curves imports the writer",
    "train_anywhere.job.batch_job": "its folder is put on the path before",
    "train_anywhere.job.packed_members": "the same",
    "train_anywhere.config.load": "most jobs have no feature that works in their supervisor",
    "train_anywhere.features": "most jobs have no feature that works in their supervisor",
    "train_anywhere.runs.reopen.resume": "a command that runs on another machine reads no run here",
    "train_anywhere.runs.reopen.frozen": "most jobs have no feature that works in their supervisor",
    "features.each": "a submission asks no more than what a feature wants",
    "yaml": "only commands that look at any run folder read configs/train.yaml",
    "horovod": "Horovod is built by its users",
    "plugins": "Hydra imports every plugin at every start",
    "train_anywhere.training.lightning.strategies.horovod": "Horovod is built by its users",
    "train_anywhere.training.keras.strategies.horovod": "Horovod is built by its users",
}
"""Why a package, or a module, is imported inside of functions."""


def test_an_import_inside_a_function_has_a_reason() -> None:
    without = [
        f"{name}:{i.line} imports {i.module}"
        for name in sources()
        if room(module_of(name)) not in REASONS
        for i in imports(name)
        if i.where == "function" and not REASONS.keys() & {i.module, i.module.split(".")[0]}
    ]
    assert without == []


def test_what_stays_inside_functions() -> None:
    """Rule 2: Hydra in config. Rule 11: anything that a plugin needs of this project."""
    kept = {"config": ("hydra", "omegaconf"), "plugins": ("train_anywhere",)}
    at_the_top = [
        f"{name}:{i.line} imports {i.module}"
        for name in sources()
        for i in imports(name)
        if i.where == "top"
        and i.module.split(".")[0] in kept.get(room(module_of(name)), ())
        and room(i.module) != room(module_of(name))
    ]
    assert at_the_top == []


def test_one_place_picks_a_framework() -> None:
    """Rule 9: by name, so that no other module knows both."""
    picking = [n for n in sources() if "import_module" in (ROOT / n).read_text()]
    targets = "engine/train_anywhere/config/instantiate.py"  # whatever the configuration names
    horovod = (
        "engine/train_anywhere/distributed/horovod/initialize.py"  # imports Horovod for either framework
    )
    server = "engine/train_anywhere/launch/fork_main.py"  # imports what its starter names
    public = "engine/train_anywhere/data/__init__.py"  # its own modules
    rank = "engine/train_anywhere/launch/rank.py"
    features = "engine/train_anywhere/features/__init__.py"  # its own packages
    commands = "src/__init__.py"  # the one that is named
    verbs = "engine/train_anywhere/__main__.py"  # the same
    lightning = "engine/train_anywhere/training/lightning/__init__.py"  # for both names of Lightning
    assert picking == [verbs, targets, public, horovod, features, server, rank, lightning, commands]


ROOMS = {
    "config", "training", "training.lightning", "training.keras", "checkpoints", "runs", "distributed", "launch", "monitor", "slurm",
    "features", "features.each",
}  # fmt: skip
OF_A_TASK = re.compile(
    r"\b(pixels?|pictures?|accurac\w+|acc|labels?|classifi\w*|logits|mnist|imagenet|vocabular\w+|(?:number of|num_?)classes)\b",
    re.I,
)
IMAGE = re.compile(r"\bimages?\b", re.I)
CONTAINERS = (
    "engine/train_anywhere/config/cluster.py", "engine/train_anywhere/config/paths.py", "engine/train_anywhere/slurm/", "slurm/",
)  # fmt: skip
"""Where an image is one of a container."""
OF_USERS = "engine/train_anywhere/config/checks/monitors.py"
"""Where words are those in names that users give to metrics."""


def test_the_engine_has_no_word_of_a_task() -> None:
    found = []
    for name in sources():
        if room(module_of(name)) in ROOMS and name != OF_USERS:
            words = [OF_A_TASK] if name.startswith(CONTAINERS) else [OF_A_TASK, IMAGE]
            lines = enumerate((ROOT / name).read_text().splitlines(), 1)
            found += [f"{name}:{n}: {line}" for n, line in lines if any(w.search(line) for w in words)]
    assert found == []


def test_one_room_writes_run_json() -> None:
    """Rule 5: others call `RunDir.update`, or undo a submission that was refused."""
    naming = {n for n in sources() if "info_file" in (ROOT / n).read_text()}
    assert {room(module_of(n)) for n in naming - {"engine/train_anywhere/slurm/submission/rollback.py"}} == {
        "runs"
    }


def test_nobody_imports_a_command() -> None:
    imported = {i.module for name in sources() for i in imports(name)}
    assert not [i for i in imported if i in COMMANDS]


COMMANDS = {f"src.{c}" for c in ("train", "run", "jobs", "evaluate")}


def test_the_engine_never_imports_the_project() -> None:
    engine = [n for n in sources() if n.startswith("engine/")]
    assert [
        f"{n}:{i.line}"
        for n in engine
        for i in imports(n)
        if i.module.split(".")[0] in ("src", "hydra_plugins")
    ] == []


SIDES = {
    "torch": (
        "engine/train_anywhere/training/lightning/",
        "src/models/lightning/",
        "src/tasks/lightning/",
        "engine/train_anywhere/data/torch/",
    ),
    "tensorflow": ("engine/train_anywhere/training/keras/", "src/models/keras/", "src/tasks/keras/", "engine/train_anywhere/data/tf/"),
}  # fmt: skip


def test_frameworks_stay_on_their_side() -> None:
    """Rules 4 and 8: files of one framework never see the other one, all other files see none."""
    packages = {"torch": TENSORFLOW, "tensorflow": TORCH, "neutral": FRAMEWORKS - {"horovod"}}
    wrong = []
    for name in sources():
        side = next((s for s, starts in SIDES.items() if name.startswith(starts)), "neutral")
        others = tuple(start for s, starts in SIDES.items() if s != side for start in starts)
        for i in imports(name):
            if i.module.split(".")[0] in packages[side] or _path(i.module).startswith(others):
                wrong.append(f"{name}:{i.line} imports {i.module}")
    assert wrong == []


def _path(module: str) -> str:
    return ("engine/" if module.startswith("train_anywhere.") else "") + module.replace(".", "/")


def loaded(arguments: list[str], program: str = "train", code: int = 0) -> set[str]:
    """Top-level modules that a command loads, which ends with this exit code."""
    start = ["-m", "train_anywhere", program] if program in VERBS else [f"src/{program}.py"]
    done = run_python("-X", "importtime", *start, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return split_imports(done.stderr)[0]


def split_imports(said: str) -> tuple[set[str], list[str]]:
    """Return the top-level modules in what a command prints with `-X importtime`, and its other lines."""
    found = said.splitlines()
    lines = [line for line in found if line.startswith("import time:")]
    return {line.split("|")[-1].strip().split(".")[0] for line in lines}, [f for f in found if f not in lines]


@pytest.mark.parametrize(
    ("program", "words", "code"),
    [
        ("train", "--cfg job", 0),
        *(
            pytest.param("train", words, 0, marks=pytest.mark.slow)
            for words in ("--help", "dry_run=true", "framework=keras dry_run=true")
        ),
        ("run", "cluster=slurm dry_run=true -- examples/programs/main.py", 0),
        ("train", "-m seed=1,2 cluster=slurm dry_run=true", 0),
        ("train", "-m hydra/sweeper=optuna seed=1,2 cluster=slurm dry_run=true", 0),
        ("scaling", "devices=1,2 cluster=slurm dry_run=true", 0),
        ("evaluate", "/nowhere cluster=slurm dry_run=true", 2),
        ("jobs", "list --results /nowhere", 2),
        ("report", "--help", 0),
        ("fetch", "trainer.max_epoch=1", 2),
    ],
)
def test_every_command_of_the_login_node_loads_no_framework(program: str, words: str, code: int) -> None:
    modules = loaded(words.split(), program, code)
    assert not modules & HEAVY and (program != "train" or "hydra" in modules)


def test_the_reader_of_imports_sees_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above can fail: imports inside functions and for types are seen."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "b.py").write_text("")
    (tmp_path / "a.py").write_text(
        "from typing import TYPE_CHECKING\nfrom src import b\nif TYPE_CHECKING:\n    import keras\n"
        "def f():\n    import torch.nn\n    return lambda: 1\n"
    )
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    seen = {(i.module, i.where) for i in imports("a.py")}
    assert seen == {("typing", "top"), ("src.b", "top"), ("keras", "types"), ("torch.nn", "function")}


def test_circles_are_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


PAGE = (ROOT / "docs/reference/api/index.md").read_text()
PUBLIC = {
    module: set(re.findall(r"`(\w+)`", names))
    for module, names in re.findall(r"^\| `([\w.]+)` \| (.*) \|$", PAGE, re.M)
}


def test_the_page_lists_what_the_modules_export() -> None:
    assert {name: set(importlib.import_module(name).__all__) for name in PUBLIC} == PUBLIC


def test_every_name_is_documented() -> None:
    bare = []
    for module, names in PUBLIC.items():
        for name in names:
            try:
                found = getattr(importlib.import_module(module), name)
            except AttributeError:  # a module of a package
                found = importlib.import_module(f"{module}.{name}")
            alias = not (inspect.ismodule(found) or inspect.isclass(found) or inspect.isfunction(found))
            if not alias and not (inspect.getdoc(found) or "").strip():
                bare.append(f"{module}.{name}")
    assert bare == []


def test_the_template_imports_nothing_else() -> None:
    private = []
    for path in [p for top in ("src", "slurm", "hydra_plugins") for p in sorted((ROOT / top).rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("train_anywhere"):
                private += [
                    f"{path.relative_to(ROOT)}: {node.module}.{a.name}"
                    for a in node.names
                    if not public(str(node.module), a.name)
                ]
    assert private == []


def public(module: str, name: str) -> bool:
    """Return whether `from module import name` uses public names only."""
    package, _, last = module.rpartition(".")
    return f"{module}.{name}" in PUBLIC or name in PUBLIC.get(module, ()) or last in PUBLIC.get(package, ())
