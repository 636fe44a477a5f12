"""Write the files of a new task: `make new-task NAME=mine`.

They are a working regression on a synthetic table under the new name, to be edited: data set, numbers, the step of each framework, their
configuration, a test. Nothing that exists is overwritten, and no other file has to change.
"""

import keyword
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FILES = {
    "src/tasks/regression.py": "src/tasks/{name}.py",
    "src/tasks/lightning/regression.py": "src/tasks/lightning/{name}.py",
    "src/tasks/keras/regression.py": "src/tasks/keras/{name}.py",
    "src/data/friedman.py": "src/data/{name}.py",
    "configs/task/regression.yaml": "configs/task/{name}.yaml",
    "configs/data/friedman.yaml": "configs/data/{name}.yaml",
    "tests/tasks/test_regression.py": "tests/tasks/test_{name}.py",
}
"""What is copied, and to where. A side that a fork has removed is left out."""

EXPERIMENT = """# @package _global_
# python src/train.py experiment={name}
defaults:
  - override /task: {name}
  - override /data: {name}
  - override /model: mlp

name: {name}
"""


def main(arguments: list[str]) -> int:
    """Write the files; returns the exit code."""
    if len(arguments) != 1 or not arguments[0]:
        print("error: name the task: make new-task NAME=mine", file=sys.stderr)
        return 2
    name = arguments[0]
    if problem := unusable(name):
        print(f"error: NAME={name} {problem}", file=sys.stderr)
        return 2
    texts = {
        ROOT / target.format(name=name): renamed(ROOT / source, name)
        for source, target in FILES.items()
        if (ROOT / source).exists()
    }
    texts[ROOT / f"configs/experiment/{name}.yaml"] = EXPERIMENT.format(name=name)
    if there := [str(path.relative_to(ROOT)) for path in texts if path.exists()]:
        print(
            f"error: {', '.join(there)} exists already; choose another name, or remove it.", file=sys.stderr
        )
        return 2
    for path, text in texts.items():
        path.write_text(text)
        print(path.relative_to(ROOT))
    print(f"\nEdit them; then: python src/train.py experiment={name}")
    return 0


def unusable(name: str) -> str:
    """Why the name can't be one of a Python module and of a choice; "" if it can."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        return "is not the name of a Python module; use small letters, digits and _, beginning with a letter."
    return ""


def renamed(source: Path, name: str) -> str:
    """The text of a file of the regression task, or of its table, for the new one."""
    camel = "".join(part.capitalize() for part in name.split("_"))
    text = source.read_text()
    text = re.sub("^_check_:.*\n", "", text, flags=re.MULTILINE)  # knows the synthetic table only
    cited = "adaptive regression splines"  # a title
    text = text.replace(cited, cited.upper()).replace("Regression", camel).replace("regression", name)
    return text.replace("friedman", name).replace(cited.upper(), cited)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
