"""The figures of a timing table, worked out by hand."""

import csv
import io
import re
from pathlib import Path

import pytest

from train_anywhere.commands.scaling import main
from train_anywhere.slurm.scaling.grid import Cell, Table
from train_anywhere.slurm.scaling.timing_table import (
    Row,
    add_speedups,
    plot,
    to_csv,
    to_text,
    write_files,
)

ONE, TWO, FOUR = (Cell(1, n, "a", "single" if n == 1 else "horovod", "auto") for n in (1, 2, 4))
OTHER = Cell(1, 4, "b", "horovod", "srun")

ROWS = add_speedups(
    [
        Row(FOUR, "completed", 30.0, 300.0, "images", waiting=0.2),
        Row(ONE, "completed", 100.0, 100.0, "images"),
        Row(TWO, "running"),
        Row(OTHER, "completed", 5.0, 50.0, "images"),
    ]
)


TEXT = """\
nodes x devices  framework  strategy  launch  time     rate          speed-up  efficiency  waiting  state
1 x 4            a          horovod   -       30.0 s   300 images/s  3.00      75%         20%      completed
1 x 1            a          single    -       100.0 s  100 images/s  1.00      100%        -        completed
1 x 2            a          horovod   -       -        -             -         -           -        running
1 x 4            b          horovod   srun    5.0 s    50 images/s   1.00      100%        -        completed"""


def test_speed_up_is_beside_the_fewest_devices_of_the_same_framework() -> None:
    assert [(r.speedup, r.efficiency) for r in ROWS] == [(3.0, 0.75), (1.0, 1.0), (None, None), (1.0, 1.0)]


def test_the_table_in_columns() -> None:
    assert to_text(ROWS) == TEXT


def test_numbers_for_other_programs() -> None:
    rows = [*csv.DictReader(io.StringIO(to_csv(ROWS)))]
    assert rows[0]["speedup"] == "3" and rows[0]["efficiency"] == "0.75" and rows[0]["waiting"] == "0.2"
    assert rows[2] == {**dict.fromkeys(rows[0], ""), "nodes": "1", "devices": "2", "framework": "a", "strategy": "horovod",
                       "launch": "auto", "unit": "samples", "state": "running"}  # fmt: skip


def test_a_curve_begins_at_the_single_device() -> None:
    (drawn,) = plot(ROWS)
    assert [*drawn.curves] == ["a horovod", "linear"]
    assert plot([r for r in ROWS if r.cell is OTHER]) == []


def test_a_table_is_found_in_a_folder_whose_name_has_an_equals_sign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lr=1").mkdir()
    assert main([str(tmp_path / "lr=1")]) == 2
    assert "contains no timing table" in capsys.readouterr().err


def test_the_page_is_whole_and_fetches_nothing(tmp_path: Path) -> None:
    table, page = write_files(Table(tmp_path, [r.cell for r in ROWS], "none"), ROWS)
    assert table.read_text() == to_csv(ROWS)
    text = page.read_text()
    assert text.rstrip().endswith("</html>") and text.count("<svg") == 1
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", text) and "75%" in text
