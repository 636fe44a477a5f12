"""Lines on a terminal, tables that lose whole columns, and the pages of --help of all commands on one of 80 columns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tests.training.test_progress import screen
from train_anywhere.__main__ import VERBS
from train_anywhere.files import ROOT
from train_anywhere.files.terminal.fit import fit, fit_page
from train_anywhere.files.terminal.table import Column, format_table

COMMAND = "python src/train.py resume=results/digits/1 trainer.max_epochs=6"


def test_a_line_breaks_between_words_below_its_start() -> None:
    assert fit("Note:  one two three", 14, 7) == "Note:  one two\n       three"
    assert fit("error: 2 problems:\n  - one two three", 13) == "error: 2\nproblems:\n  - one two\n    three"
    assert fit("short", 80) == "short" and fit("one two", None) == "one two"
    assert fit("x" * 20, 10) == "x" * 20  # a path is never broken


def test_commands_and_quoted_phrases_stay_whole() -> None:
    assert fit(f"Next:          {COMMAND}", 70, 15) == f"Next:\n    {COMMAND}"
    first, second = COMMAND.rsplit(" ", 1)
    assert fit(f"It is complete. Next: {COMMAND}", 50).endswith(f"\n{first} \\\n{second}")
    assert fit(f"use `{COMMAND}`.", 50) == f"use\n`{first} \\\n{second}`."
    assert fit("say `a b` again", 9) == "say `a b`\nagain"


def test_columns_stay_whole_and_names_of_rows_stand_out() -> None:
    line = "run-1  on this machine  epoch 1, step 5/5  val/loss 1.4792  val/acc 0.6313"
    assert fit(line, 50, 2).split("\n") == [line[:41], f"  {line[43:]}"]
    assert fit("Data:    one two three", 16) == "Data:    one two\n         three"


def test_text_after_a_gap_continues_below_it() -> None:
    page = "  key: 1  # one two three four five six seven"
    assert fit_page(page, 44) == f"  key: 1  # one two three four five six\n{' ' * 12}seven"
    page = "    python src/jobs.py resubmit [RUN]  submit it again in the same folder"
    assert fit_page(page, 60).splitlines() == [page[:57], f"{' ' * 30}{page[58:]}"]


@pytest.mark.new_process
@pytest.mark.parametrize(
    "words",
    ["src/jobs.py", "src/evaluate.py", "src/train.py", *(f"-m train_anywhere {verb}" for verb in VERBS)],
)
def test_help_fits_80_columns(words: str) -> None:
    path, *verb = (str(ROOT / words),) if words.startswith("src") else (None, words.rpartition(" ")[2])
    start = (
        f"runpy.run_path({path!r}, run_name='__main__')"
        if path
        else "runpy.run_module('train_anywhere', run_name='__main__')"
    )
    run = f"import runpy, sys; sys.argv = [{words!r}, *{verb!r}, '--help']; {start}"
    shown = screen(run, 80).replace("\r", "").splitlines()
    assert len(shown) > 5 and [line for line in shown if len(line) > 80] == []


ROWS = [("20260101-000000-aaaa", "running", "3/9", "lr=1"), ("20260101-000000-bbbb-12", "failed", "-", "")]
COLUMNS = [
    Column[tuple[str, ...]]("run", lambda row: row[0]),
    Column[tuple[str, ...]]("state", lambda row: row[1], drop=1),
    Column[tuple[str, ...]]("progress", lambda row: row[2], drop=2),
]
TAIL = Column[tuple[str, ...]]("differs", lambda row: row[3])


def test_columns_are_aligned() -> None:
    assert format_table(COLUMNS, ROWS, None, TAIL).splitlines() == [
        "run                      state    progress  differs",
        "20260101-000000-aaaa     running  3/9       lr=1",
        "20260101-000000-bbbb-12  failed   -",
    ]
    assert format_table(COLUMNS, []) == "run  state  progress"


def test_the_highest_drop_goes_first_and_the_tail_goes_below() -> None:
    titles = [format_table(COLUMNS, ROWS, width).split("\n")[0].split() for width in (60, 35, 24)]
    assert titles == [["run", "state", "progress"], ["run", "state"], ["run"]]
    long = [(*ROWS[0][:3], "data.name=" + "a" * 30)]
    assert format_table(COLUMNS, long, 45, TAIL).splitlines()[2] == "    data.name=" + "a" * 30


@given(
    st.lists(st.tuples(*[st.text("ab c", min_size=1, max_size=30)] * 4), min_size=1, max_size=4),
    st.integers(10, 120),
    st.integers(0, 20),
)
def test_nothing_is_cut_and_lines_fit(rows: list[tuple[str, ...]], width: int, least: int) -> None:
    """Only the columns that are never dropped, or a word of the tail, may be wider than the terminal."""
    shown = format_table(COLUMNS, rows, width, TAIL, least)
    words = [word for row in rows for word in (*row[0].split(), *row[3].split())]
    assert all(word in shown for word in words)
    most = max(width, *(len(row[0]) for row in rows), *(4 + len(row[3]) for row in rows))
    assert all(len(line) <= most for line in shown.split("\n"))


def test_colors_do_not_count() -> None:
    painted = [
        *COLUMNS[:1],
        Column[tuple[str, ...]]("state", lambda row: row[1], paint=lambda text, row: f"<{text}>"),
    ]
    assert format_table(painted, ROWS).splitlines()[2] == "20260101-000000-bbbb-12  <failed >"
