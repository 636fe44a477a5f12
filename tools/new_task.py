"""Write the files of a new task: `make new-task NAME=mine`.

They are a copy of the regression task and its synthetic table under the new name, which works and which you edit: a module of each
framework, a data set, their configuration, tests. No existing file is changed.
"""

import keyword
import os
import re
import sys
from pathlib import Path

ROOT = Path(os.environ.get("TEMPLATE_PROJECT") or Path(__file__).resolve().parents[1])

FILES = {
    "src/tasks/lightning/regression.py": "src/tasks/lightning/{name}.py",
    "src/tasks/keras/regression.py": "src/tasks/keras/{name}.py",
    "src/data/friedman.py": "src/data/{name}.py",
    "configs/task/regression.yaml": "configs/task/{name}.yaml",
    "configs/data/friedman.yaml": "configs/data/{name}.yaml",
    "tests/tasks/lightning/test_regression.py": "tests/tasks/lightning/test_{name}.py",
    "tests/tasks/keras/test_regression.py": "tests/tasks/keras/test_{name}.py",
}
"""Files to copy, and their new names. Files of a framework that was removed from the project are left out."""

EXPERIMENT = """# @package _global_
# python src/train.py experiment={name}
defaults:
  - override /task: {name}
  - override /data: {name}
  - override /model: mlp

name: {name}
"""


def main(arguments: list[str]) -> int:
    """Write the files; return the exit code."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    if len(arguments) != 1 or not arguments[0]:
        print("error: name the task: make new-task NAME=mine", file=sys.stderr)
        return 2
    name = arguments[0]
    if problem := name_problem(name):
        print(f"error: NAME={name} {problem}", file=sys.stderr)
        return 2
    texts = {
        ROOT / target.format(name=name): rename_source(ROOT / source, name)
        for source, target in FILES.items()
        if (ROOT / source).exists()
    }
    texts[ROOT / f"configs/experiment/{name}.yaml"] = EXPERIMENT.format(name=name)
    if existing := [str(path.relative_to(ROOT)) for path in texts if path.exists()]:
        print(f"error: these files exist already: {', '.join(existing)}; use another NAME.", file=sys.stderr)
        return 2
    for path, text in texts.items():
        path.write_text(text)
        print(path.relative_to(ROOT))
    print(f"\nEdit these files, then run: python src/train.py experiment={name}")
    return 0


def name_problem(name: str) -> str:
    """Return why the name can't be that of a Python module and of a configuration file; "" if it can."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        return (
            "can't be the name of a Python module; use small letters, digits and _, starting with a letter."
        )
    return ""


def rename_source(source: Path, name: str) -> str:
    """Return the contents of a file of the regression task, or of its table, with the new name."""
    camel = "".join(part.capitalize() for part in name.split("_"))
    text = source.read_text()
    text = re.sub("^_check_:.*\n", "", text, flags=re.MULTILINE)  # the check fits only the synthetic table
    cited = "adaptive regression splines"  # part of a title, to be kept
    text = text.replace(cited, cited.upper()).replace("Regression", camel).replace("regression", name)
    return text.replace("friedman", name).replace(cited.upper(), cited)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
