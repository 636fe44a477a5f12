"""Leave one framework alone in this project, for a fork that needs no other: `make lightning-only` or `make keras-only`.

What goes, by these rules and no others:
1. files and folders named after the other framework, its pipelines (`tf_*`, `torch_*`), its strategies or its launcher;
2. choices below configs/ that ask for it, and its line of a `_target_` that has one for each framework;
3. passages between the marks `only NAME` and `end NAME`, which are comments in the language of the file;
4. in Markdown the sections, and the rows of tables and lines of code, that name it; a requirement that does;
5. in Python the functions and classes named after it, and the rows of tables (an element that has its lines for itself) and the
   cases of a `match` that name it;
6. where both names stand side by side, as in `Literal["lightning", "keras"]`, the other one.
7. the tests that name it, with what only they use.
In src/models, src/data and src/tasks, which are yours, only 1 and 3 hold; in folders that you added, none. Nothing is committed: `git diff`
shows what happened.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.one_framework_sides import SIDES, Side
from tools.one_framework_text import (
    cut_lines,
    cut_markdown,
    cut_marks,
    cut_pairs,
    cut_python,
    cut_tests,
    cut_yaml,
    translated,
)

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv" / "bin"
OURS = ("src", "slurm", "hydra_plugins", "configs", "tests", "tools", "benchmarks", "docs", "requirements")
YOURS = ("src/models/", "src/data/", "src/tasks/")
TEST = "tests/tools/test_one_framework.py"
LEFT = ("tools/one_framework", TEST, "tools/horovod_corrections.py")
"""What says how to do this, and what corrects Horovod's own files."""


def main(arguments: list[str]) -> int:
    """Remove the other side; returns the exit code: 0, or 2 where nothing was done."""
    if len(arguments) != 1 or arguments[0] not in SIDES:
        return refuse(f"which framework stays? One of {', '.join(SIDES)}.")
    keep = SIDES[arguments[0]]
    here = [name for name in SIDES if (ROOT / f"src/training/{name}/run.py").exists()]
    if here == [keep.name]:
        print(f"This project has {keep.name} alone already.")
        return 0
    if keep.name not in here:
        return refuse(f"this project has no {keep.name} any more; `git log` knows where it was removed.")
    gone = next(side for side in SIDES.values() if side is not keep)
    try:
        if git("status", "--porcelain"):
            return refuse(
                "there are changes that are not committed; commit or stash them first, so that nothing is lost."
            )
        changes = dict(planned(keep, gone))
    except (subprocess.CalledProcessError, FileNotFoundError):
        return refuse(
            "this is no checkout of git, which could show and undo the change; `git init`, add and commit first."
        )
    except SyntaxError as error:
        return refuse(
            f"{error.filename}, line {error.lineno}, would not be valid Python; nothing was changed."
        )
    report(apply(changes), keep)
    tidy(list(changes))
    return 0


def refuse(sentence: str) -> int:
    """Say why nothing was done."""
    print(f"error: {sentence}", file=sys.stderr)
    return 2


def git(*words: str) -> str:
    """What git says about this project."""
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout


def apply(changes: dict[str, str | None]) -> list[str]:
    """Delete and write; returns a line for each file."""
    done = []
    for name, text in changes.items():
        path = ROOT / name
        if text is None:
            path.unlink()
            done.append(f"removed  {name}")
            remove_empty(path.parent)
        else:
            less = len(path.read_text().splitlines()) - len(text.splitlines())
            path.write_text(text)
            done.append(f"edited   {name}" + (f": {less} lines less" if less else ""))
    return done


def planned(keep: Side, gone: Side) -> Iterator[tuple[str, str | None]]:
    """Each file that changes, and its new text; None: it goes.

    Raises:
        SyntaxError: a file of Python is none, or would be none.
    """
    for name in git("ls-files", "-z").split("\0"):
        path = ROOT / name
        if not is_ours(name) or path.is_symlink() or not path.is_file():
            continue
        if name == TEST or belongs(name, keep, gone):
            yield name, None
        elif (was := text_of(path)) is not None and not name.startswith(LEFT):
            text = edited(name, was, keep, gone)
            if text != was:
                yield name, text if text.strip() else None


def is_ours(name: str) -> bool:
    """Whether a file is in a folder of this project, or one of those at its top."""
    return name.startswith(tuple(f"{folder}/" for folder in OURS)) or (bool(name) and "/" not in name)


def belongs(name: str, keep: Side, gone: Side) -> bool:
    """Whether a file is of the other side by its name, as a choice of configs/, or as a benchmark that measures it outside of marks."""
    if gone.in_path(name):
        return True
    if name.startswith("benchmarks/") and name.endswith(".py"):
        return gone.words.search(cut_marks((ROOT / name).read_text(), keep, gone)) is not None
    return name.startswith("configs/") and name.count("/") > 1 and gone.is_choice((ROOT / name).read_text())


def text_of(path: Path) -> str | None:
    """None for what is no text."""
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return None


def edited(name: str, text: str, keep: Side, gone: Side) -> str:
    """The text of a file without the other side."""
    for rule in rules(name):
        text = rule(text, keep, gone)
    if name.endswith(".py"):
        compile(text, name, "exec")
    return text


Rule = Callable[[str, Side, Side], str]


def rules(name: str) -> list[Rule]:
    """What is done with a file, in this order."""
    if name.startswith(YOURS):
        return [cut_marks]
    of_kind: dict[str, list[Rule]] = {
        ".py": [cut_python],
        ".toml": [cut_lines],
        ".yaml": [cut_yaml],
        ".yml": [cut_yaml],
        ".md": [cut_markdown],
    }
    test = [cut_tests] if Path(name).name.startswith("test_") else []
    return [translated, cut_marks, cut_pairs, *of_kind.get(Path(name).suffix, []), *test]


def remove_empty(folder: Path) -> None:
    """A folder of which nothing is left but Python's caches, and those around it."""
    while folder != ROOT and not [path for path in folder.iterdir() if path.name != "__pycache__"]:
        for cached in folder.glob("__pycache__/*.pyc"):
            cached.unlink()
        if (folder / "__pycache__").is_dir():
            (folder / "__pycache__").rmdir()
        folder.rmdir()
        folder = folder.parent


def tidy(changed: list[str]) -> None:
    """Imports that nothing needs any more go, tables close up, and the golden batch scripts follow the configuration."""
    if not (VENV / "python").exists():
        subprocess.run(["make", "setup"], cwd=ROOT, check=True)
    python = [name for name in changed if name.endswith(".py") and (ROOT / name).exists()]
    subprocess.run(
        [VENV / "ruff", "check", "-q", "--fix", "--select", "F401,I", *python], cwd=ROOT, check=True
    )
    subprocess.run([VENV / "ruff", "format", "-q", *python], cwd=ROOT, check=True)
    subprocess.run([VENV / "python", "tests/template/golden/renew.py"], cwd=ROOT, check=True)


def report(done: list[str], keep: Side) -> None:
    """Say what was done, and what comes next."""
    print("\n".join(done))
    print(
        f"\n{len(done)} files. Look at `git diff`, run `make test`, then: git add -A && git commit -m 'Only {keep.name}'"
    )
    print("To undo it: git checkout -- . ; files of your own beside these were not touched.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
