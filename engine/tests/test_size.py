"""Each package of the engine has at most the lines and statements of a table.

A change that needs more raises the numbers in the same commit and gives the reason there.
`python engine/tests/test_size.py` prints the table of the present code, rounded up.
"""

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ENGINE = Path(__file__).parents[1] / "train_anywhere"
STEP = 20
"""The numbers of the table are multiples of this, so that a fix of a few lines needs no new table."""

LIMITS = {
    ".": (260, 100),
    "checkpoints": (1740, 1100),
    "commands": (2380, 1500),
    "config": (6180, 3660),
    "data": (3400, 1980),
    "distributed": (1620, 880),
    "features": (3640, 2220),
    "files": (1400, 840),
    "inference": (820, 480),
    "job": (1460, 940),
    "launch": (2160, 1440),
    "monitor": (2080, 1160),
    "plugins": (320, 160),
    "program": (1040, 680),
    "remote": (1120, 680),
    "runs": (2360, 1380),
    "search": (840, 520),
    "slurm": (7720, 4480),
    "testing": (600, 360),
    "training": (14060, 8380),
}
"""Lines and statements by package; "." has the modules next to the packages."""

MOST_LINES = 55000
MOST_STATEMENTS = 32780
"""Limits of the whole engine. They fall with the code, and rise only by what a new feature was planned to cost."""


def count(path: Path) -> Counter[str]:
    """Return lines and statements of a module. A statement is a logical line without docstrings."""
    text = path.read_text()
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    owners = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    docstrings = sum(ast.get_docstring(owner, clean=False) is not None for owner in owners)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    logical = sum(token.type == tokenize.NEWLINE for token in tokens)
    return Counter(lines=text.count("\n"), statements=logical - docstrings)


def measure(root: Path) -> dict[str, tuple[int, int]]:
    """Return lines and statements of each package directly below a folder."""
    sums: dict[str, Counter[str]] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        sums.setdefault(parts[0] if parts[1:] else ".", Counter()).update(count(path))
    return {name: (found["lines"], found["statements"]) for name, found in sums.items()}


def excess(found: dict[str, tuple[int, int]], limits: dict[str, tuple[int, int]]) -> list[str]:
    """Return a message for each package that is above its limits or has none."""
    return [
        f"{name}: {lines} lines and {statements} statements, at most {limits.get(name, (0, 0))}"
        for name, (lines, statements) in found.items()
        if lines > limits.get(name, (0, 0))[0] or statements > limits.get(name, (0, 0))[1]
    ]


def test_packages_are_within_their_sizes() -> None:
    assert not excess(measure(ENGINE), LIMITS)


def test_the_whole_engine_is_within_its_size() -> None:
    found = measure(ENGINE).values()
    assert sum(lines for lines, _ in found) <= MOST_LINES
    assert sum(statements for _, statements in found) <= MOST_STATEMENTS


def test_every_package_of_the_table_exists() -> None:
    assert LIMITS.keys() == measure(ENGINE).keys()


def test_one_more_line_is_found(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    module = tmp_path / "data" / "rows.py"
    module.write_text(
        '"""Rows."""\n\n\ndef first(\n    rows: list,\n):\n    """Return the first row."""\n    return rows[0]\n'
    )
    assert measure(tmp_path) == {"data": (8, 2)}
    assert not excess(measure(tmp_path), {"data": (8, 2)})
    assert excess(measure(tmp_path), {"data": (7, 2)}) and excess(measure(tmp_path), {"data": (8, 1)})
    assert excess(measure(tmp_path), {})


if __name__ == "__main__":
    table = measure(ENGINE)
    for name, numbers in sorted(table.items()):
        print(f'    "{name}": {tuple(-(-number // STEP) * STEP for number in numbers)},')
    print([-(-sum(numbers) // STEP) * STEP for numbers in zip(*table.values(), strict=True)])
