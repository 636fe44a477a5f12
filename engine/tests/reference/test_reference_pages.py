"""Tables of docs/reference name the code's exit codes, variables and files of a run folder."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from train_anywhere import errors
from train_anywhere.files import ENGINE, ROOT
from train_anywhere.runs.reopen import frozen
from train_anywhere.testing.plugin import FRAMEWORKS, Command

REFERENCE = ROOT / "docs/reference"

NO_VARIABLES = {
    *("BOOT_FAIL", "INVALID_DEPEND", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "RECONFIG_FAIL", "STAGE_OUT"),
    *("ARRAY_TASKS", "TIME_LIMIT", "TIME_LIMIT_50", "TIME_LIMIT_80", "TIME_LIMIT_90", "PBS_BATCH"),
    *("KW_ONLY", "NO_DEFAULT", "PROMPT_COMMAND", "TYPE_CHECKING", "SC_PAGE_SIZE", "TF_C", "MERGE_HEAD", "HAS_PROJECT"),
}  # fmt: skip
"""Other strings in capitals: states and reasons of Slurm, names of Python and of the system."""

NOT_OF_USERS = {
    *("CMAKE_POLICY_VERSION_MINIMUM", "HOROVOD_GPU_OPERATIONS", "HOROVOD_LOCAL_VERSION"),
    *("HOROVOD_WITHOUT_MPI", "HOROVOD_WITH_GLOO", "HOROVOD_WITH_MPI", "LC_ALL"),
    *("TOKENIZERS_PARALLELISM", "LD_LIBRARY_PATH", "TEMPLATE_PROJECT", "TRAIN_ANYWHERE_SSH"),
    "PL_SEED_WORKERS",  # of Lightning
    "MLFLOW_LOGGING_LEVEL",  # of MLflow, which would print its own progress
    *("SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SRUN_CPUS_PER_TASK"),
}
"""Variables that only programs get which the project starts: Horovod's build, queries and steps of the scheduler, tokenizers."""


def first_cells(page: str) -> set[str]:
    """Return the code in the first column of all tables of a page."""
    rows = [
        line.split(" | ") for line in (REFERENCE / page).read_text().splitlines() if line.startswith("| ")
    ]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row[0])}


def test_exit_codes() -> None:
    rows = re.findall(r"^\| (\d+) \|", (REFERENCE / "exit-codes.md").read_text(), re.M)
    codes = {v for k, v in vars(errors).items() if k.isupper() and isinstance(v, int)}
    assert {int(row) for row in rows} == {0, 1, *codes} and len(codes) == 4


def strings() -> Iterator[str]:
    """Yield strings of the code that runs and submits, and variables of its templates."""
    tops = [ENGINE / "train_anywhere", ROOT / "src", ROOT / "slurm", ROOT / "tools"]
    files = [path for top in tops for path in top.rglob("*") if not {"testbed", "testing"} & set(path.parts)]
    for path in files:
        if path.suffix == ".py":
            yield from (
                node.value
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            )
        elif path.suffix == ".j2":
            yield from re.findall(r"\bTRAIN_[A-Z]+(?:_[A-Z]+)*\b", path.read_text())


def source_text() -> str:
    """Return the code, templates and configs in one string."""
    tops = (ENGINE / "train_anywhere", ROOT / "slurm", ROOT / "tools", ROOT / "configs")
    files = (path for top in tops for path in top.rglob("*") if path.suffix in (".py", ".j2", ".yaml", ".sh"))
    return "".join(path.read_text() for path in files)


def test_environment_variables() -> None:
    used = {text for text in strings() if re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+", text)}
    page = (REFERENCE / "environment-variables.md").read_text()
    shown = set(re.findall(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)`", page))
    assert used - shown - NO_VARIABLES - NOT_OF_USERS == set()
    code = source_text()
    options = {f"SBATCH_{option}" for option in ("PARTITION", "QOS", "RESERVATION")}
    torchrun = {"PET_MASTER_ADDR", "PET_MASTER_PORT"}  # made of PET_ and their names
    assert {name for name in shown if name not in code} == options | torchrun | {"TF_XLA_FLAGS"}


def patterns() -> list[str]:
    """Return the files of the page as regular expressions."""
    names = first_cells("run-folder.md")
    return [
        re.sub(r"<\\?\w+>|<\.\.\.>", r"[^/]+", re.escape(name).replace(r"\.\.\.", "...")) for name in names
    ]


def test_every_name_that_a_run_writes_is_on_the_page() -> None:
    """`runs.links` lists files and folders that a run writes directly and in checkpoints/."""
    tops = {name.split("/")[0] for name in first_cells("run-folder.md")}
    written = [
        *frozen.FOLDERS.split("|"),
        *re.split(r"\|(?![^(]*\))", frozen.FILES),
        "code",
        "code-<n>",
        "before-<n>",
    ]
    shown = {name.replace("<job>", "1") for name in tops}
    assert [one for one in written if not any(re.fullmatch(one, name) for name in shown)] == []
    for top in tops:
        known = re.fullmatch(frozen.FILES + "|" + frozen.FOLDERS, top.replace("<job>", "1"))
        assert known or top in ("code", "code-<n>", "before-<n>") or re.search(r"\.(before-)?<n>$", top), top


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_file_of_a_run_is_on_the_page(train: Command, tmp_path: Path, framework: str) -> None:
    words = ("trainer.max_steps=2", "model=mlp", "monitor.ranks=true", "monitor.sample_seconds=0.5")
    done = train(f"framework={framework}", *words, f"paths.results={tmp_path}")
    assert done.returncode == 0, done.stderr
    run = (tmp_path / "latest").resolve()
    files = [str(path.relative_to(run)) for path in run.rglob("*") if not path.is_dir()]
    shown = [*patterns(), r".*/\.run-marker"]
    assert len(files) > 15
    assert [name for name in files if not any(re.fullmatch(one, name) for one in shown)] == []


def test_names_on_the_page_are_in_the_code() -> None:
    code = source_text()
    last = {name.rstrip("/").rpartition("/")[2] for name in first_cells("run-folder.md")}
    stems = {re.split(r"[.<]", name.lstrip("."))[0] for name in last} - {""}
    assert len(stems) > 40 and [stem for stem in stems if stem not in code] == []
