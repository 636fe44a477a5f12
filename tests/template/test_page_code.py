"""Python on the pages is copied from `examples/`, or the page's commands train with it."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.template.test_readme import PAGES, Train, command_blocks, commands, own_files
from train_anywhere.errors import DataError
from train_anywhere.files import ROOT

TESTED_ELSEWHERE = {"add-a-feature.md", "large-data.md", "figures.md", "keras-fit.md"}
"""Pages whose blocks have a test of their own: test_features_page.py of the engine, tests/data/test_shards.py, test_search_terms.py."""

EXCERPT = re.compile(r'```python title="(examples/\S+)"\n(.*?)```', re.S)
"""Lines of a file in `examples/`. Between functions, where two lines are empty, others may be left out."""

EXCERPTS = [(page.name, name, block) for page in PAGES for name, block in EXCERPT.findall(page.read_text())]


@pytest.mark.parametrize("page, name, block", EXCERPTS)
def test_excerpts_stand_in_their_files(page: str, name: str, block: str) -> None:
    text = (ROOT / name).read_text()
    for part in block.strip("\n").split("\n\n\n"):
        assert part in text, f"{page}: edit the excerpt to match {name}"
        text = text.partition(part)[2]


WITH_FILES = [
    pytest.param(page, command, id=f"{page.stem} {command[22:60]}")
    for page in PAGES
    if own_files(page) and page.name not in TESTED_ELSEWHERE
    for command in commands(page)
    if command.startswith("python src/train.py")
    and any(f"={Path(n).stem}." in command for n in own_files(page))
]


@pytest.mark.slow
@pytest.mark.parametrize("page, command", WITH_FILES)
def test_own_files_train(train: Train, page: Path, command: str, tmp_path: Path) -> None:
    """The files of a page train one step, after the commands that they start from."""
    for name, text in own_files(page).items():
        (tmp_path / name).write_text(text)
    rows = "".join(f"{i},{i % 7},{i % 5}\n" for i in range(200))
    (tmp_path / "table.csv").write_text(f"a,b,c\n{rows}")
    results = tmp_path / "results"
    needs_run = "init=results/latest" in command
    length = "trainer.max_steps=1" if needs_run else "trainer.fast_dev_run=true"
    for line in [*(commands_before(page, command) if needs_run else ()), command]:
        words = [f"data.dir={tmp_path}" if w.startswith("data.dir=") else w for w in shlex.split(line)[2:]]
        words = [f"init={results}/latest" if w == "init=results/latest" else w for w in words]
        last = (length, f"paths.results={results}")
        done = train(*words, *last, env={"PYTHONPATH": str(tmp_path)}, timeout=600)
        assert done.returncode == 0, done.stderr


def commands_before(page: Path, command: str) -> list[str]:
    """Return the commands that precede a command in its block."""
    block = next(block for block in command_blocks(page) if command in block)
    return block[: block.index(command)]


def test_every_python_block_is_tested() -> None:
    """A block of Python is an excerpt, or a file that a command of its page uses."""
    untested = []
    for page in (ROOT / "docs/how-to").glob("*.md"):
        tested = len(EXCERPT.findall(page.read_text())) + (len(own_files(page)) if used(page) else 0)
        if page.name not in TESTED_ELSEWHERE and page.read_text().count("```python") != tested:
            untested.append(page.name)
    assert untested == []


def used(page: Path) -> bool:
    """Return whether a command or a block of YAML of the page names the module of each file."""
    named = [f"={c}" for c in page.read_text().split(": ")] + commands(page)
    return all(any(f"={Path(n).stem}." in text for text in named) for n in own_files(page))


def test_the_check_of_an_own_data_set_refuses_a_missing_file(tmp_path: Path) -> None:
    (page,) = (page for page in PAGES if page.name == "own-dataset.md")
    names: dict[str, Any] = {}
    exec(own_files(page)["checks.py"], names)
    with pytest.raises(DataError, match=r"has no table\.csv"):
        names["table"](str(tmp_path), True)
    assert names["table"](str(tmp_path), False).facts == {"outputs": 1}
