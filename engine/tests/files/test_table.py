"""Tables lose whole columns on a narrow terminal, and never a part of a value."""

from hypothesis import given
from hypothesis import strategies as st

from train_anywhere.files.terminal.table import Column, format_table

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
