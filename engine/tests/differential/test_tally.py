"""The sums of a long run flag rare draws and rows of the table that no program needs."""

from pathlib import Path

from engine.tests.differential.tally import add_batch, find_problems


def test_batches_are_summed_before_they_are_judged(tmp_path: Path) -> None:
    file = tmp_path / "sums.json"

    def add(kind: str, draws: int, *rows: str) -> list[str]:
        sums = add_batch(file, kind, 100, {"often": 30, "rare": draws}, rows)
        return find_problems(sums, 200, ["often", "rare"], ["one", "two", "three"])

    assert add("alone", 9, "one") == []
    assert add("alone", 10, "one") == ["rare is drawn 19 times"]
    assert add("stops", 10, "two") == ["rare is drawn 19 times"]  # stops do not count as draws
    assert add("ranks", 10) == ["rare is drawn 19 times", "the row three of the table is never needed"]
    assert add("alone", 1, "three") == []
    assert find_problems(add_batch(None, "alone", 100, {}, []), 200, ["rare"], ["one"]) == []
