from typing import Any

import pytest

from slurm.status.findings import findings


def test_each_finding_is_a_sentence() -> None:
    hang = {"step": 7, "line": "rank 3 on node2 hangs in step 8, for 90 s."}
    content = {"late": [2, 3], "slow": [{"rank": 1, "factor": 1.52}], "hang": hang, "hangs": []}
    assert [*findings(content)] == [
        "not there yet: ranks 2, 3",
        "rank 1 takes 1.52 times as long as the others",
        "rank 3 on node2 hangs in step 8, for 90 s.",
    ]
    assert [*findings({"hang": {"step": 7}, "late": [5]})] == [
        "not there yet: rank 5",
        "ranks hang at step 7",
    ]


@pytest.mark.parametrize(
    "content", [{}, {"late": [], "slow": [], "hang": None}, {"late": 3, "slow": [4], "hang": "x"}]
)
def test_of_a_run_that_is_well_there_is_none(content: dict[str, Any]) -> None:
    assert [*findings(content)] == []
