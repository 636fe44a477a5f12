"""When ranks hang, and who is behind, from what is known of them."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tools.testing.processes import start_python
from train_anywhere.features.hangs.hangs import describe, find_hang, limit, rank_names
from train_anywhere.features.hangs.stacks import collect
from train_anywhere.files import ROOT
from train_anywhere.monitor.ranks import ENDED, GONE, RankStatus
from train_anywhere.runs.lock import process_start

RANK = RankStatus(
    rank=0, world_size=4, host="node1", pid=1, started=1, stacks=1, process="S", section="step", place="backward", turn=2, batch=5, step=57,
    seconds=100.0, silent=1.0, longest=0.5, own=1.0, data=0.1, trained=57, beats=171, clock=1000.0,
)  # fmt: skip


def ranks(*differences: dict[str, Any]) -> list[RankStatus]:
    return [
        replace(RANK, **{"rank": n, "host": f"node{n // 2 + 1}", **fields})
        for n, fields in enumerate(differences)
    ]


RANK_ASKED = """
import faulthandler, os, signal, sys
from pathlib import Path
from train_anywhere.distributed.topology import Topology
from train_anywhere.features.hangs import stacks
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.runs.folder import RunDir

unregister = faulthandler.unregister

def asked_just_then(number):
    unregister(number)
    os.kill(os.getpid(), signal.SIGUSR2)

faulthandler.unregister = asked_just_then
own = Heartbeat()
own.open(RunDir(Path(sys.argv[1])), Topology(rank=0, world_size=1))
with stacks.written_on_signal(own):
    pass
"""
"""A rank that is asked for its stacks in the moment in which it stops answering."""


def test_a_rank_that_is_asked_at_its_end_lives(make_run: Any) -> None:
    _, run = make_run()
    done = subprocess.run([sys.executable, "-c", RANK_ASKED, str(run.path)], cwd=ROOT, timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"longest": 100.0}, 500.0),  # several times the longest seen
        ({"longest": 0.5}, 180.0),  # the lower limit
        ({"longest": 1000.0}, 1800.0),  # the bound
        ({"beats": 3}, 1800.0),  # nothing is known yet
        ({"section": "checkpoint", "longest": 1.0}, 1800.0),  # they are independent
        ({"section": "start", "longest": 1.0}, 1800.0),
    ],
)
def test_limits_are_learnt_up_to_a_bound(fields: dict[str, Any], seconds: float) -> None:
    assert limit(replace(RANK, **fields), 1800.0) == seconds


def test_a_small_bound_counts_for_all_but_the_start() -> None:
    assert limit(RANK, 6.0) == 6.0
    assert limit(replace(RANK, section="start"), 6.0) == 600.0


LATE, WAITING = {"silent": 200.0}, {"silent": 200.0, "turn": 4}
AT_WORK = {"section": "checkpoint", "place": "", "turn": 3, "silent": 200.0}
DONE = {"process": ENDED, "section": "end", "silent": 5000.0}
VALIDATES = {"section": "validation", "place": "", "batch": 7, "silent": 2000.0}
HANGS: dict[str, tuple[list[dict[str, Any]], tuple[int, ...], list[str]]] = {
    "the least progress": (
        [LATE, LATE, {**LATE, "place": "forward"}, LATE], (2,),
        ["rank 2 on node2 hangs in step 58, in the forward pass, for 200 s; ranks 0-1,3 wait for it."],
    ),
    "among equals the one that is stopped": (
        [LATE, {**LATE, "process": "T"}, LATE], (1,), ["rank 1 on node1 hangs", "its process is stopped"],
    ),
    "all": ([LATE] * 4, (0, 1, 2, 3), ["ranks 0-1 on node1, ranks 2-3 on node2 hang in step 58"]),
    "ranks that wait for one at work, such as a checkpoint of rank 0": ([AT_WORK, WAITING], (), []),
    "one that is at work for too long": ([{**AT_WORK, "silent": 1801.0}, WAITING], (0,), []),
    "ranks that are done": ([DONE, DONE], (), []),
    "one that has ended": ([LATE, {**DONE, "process": GONE, "section": "step"}], (1,), ["its process has ended"]),
    "outside of steps": ([VALIDATES], (0,), ["rank 0 on node1 hangs in the section 'validation' after 7 batches, for 2000 s."]),
}  # fmt: skip
"""What differs of each rank, the ranks that hang, and parts of the description."""


@pytest.mark.parametrize("case", HANGS)
def test_the_ranks_that_hang_are_found_and_described(case: str) -> None:
    differences, numbers, parts = HANGS[case]
    hang = find_hang(ranks(*differences), 10.0 if case == "ranks that are done" else 1800.0)
    assert tuple(r.rank for r in (hang.behind if hang else ())) == numbers
    assert all(hang and part in describe(hang) for part in parts)


def test_numbers_in_spans() -> None:
    assert rank_names([3]) == "rank 3"
    assert rank_names([5, 0, 1, 2]) == "ranks 0-2,5"


def test_the_stacks_of_a_program_are_its_own() -> None:
    """Not those of the process that waits for it, which would answer SIGUSR2."""
    if not Path(sys.executable).with_name("py-spy").exists():
        pytest.skip("needs py-spy")
    inner = "import time\ndef computes():\n    print(flush=True)\n    time.sleep(60)\ncomputes()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with start_python("-c", outer) as process:
        assert process.stdout and process.stdout.readline()
        rank = replace(RANK, pid=process.pid, started=int(process_start(process.pid) or 0), section="program")
        found = collect([rank], Path("/nowhere"))
        process.kill()
        process.stdout.close()
    assert "computes" in found[0], found
