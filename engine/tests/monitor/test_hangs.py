"""When ranks hang, and who is behind, from what is known of them."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from train_anywhere.features.hangs.hangs import describe, find_hang, limit, minority_ranks, rank_names
from train_anywhere.features.hangs.stacks import collect
from train_anywhere.files import ROOT
from train_anywhere.monitor.ranks import ENDED, GONE, RankStatus
from train_anywhere.runs.lock import process_start

RANK = RankStatus(
    rank=0,
    world_size=4,
    host="node1",
    pid=1,
    started=1,
    stacks=1,
    process="S",
    section="step",
    place="backward",
    turn=2,
    batch=5,
    step=57,
    seconds=100.0,
    silent=1.0,
    longest=0.5,
    own=1.0,
    data=0.1,
    trained=57,
    beats=171,
    clock=1000.0,
)


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
stacks.register(own)
stacks.unregister(own)
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


def test_the_rank_with_the_least_progress_is_named() -> None:
    late = {"silent": 200.0}
    hang = find_hang(ranks(late, late, {**late, "place": "forward"}, late), 1800.0)
    assert hang and hang.numbers == (2,)
    assert (
        describe(hang)
        == "rank 2 on node2 hangs in step 58, in the forward pass, for 200 s; ranks 0-1,3 wait for it."
    )


def test_among_equals_the_process_that_is_stopped_is_named() -> None:
    late = {"silent": 200.0}
    hang = find_hang(ranks(late, {**late, "process": "T"}, late), 1800.0)
    assert hang and hang.numbers == (1,)
    assert "rank 1 on node1 hangs" in describe(hang) and "its process is stopped" in describe(hang)


def test_among_equals_the_one_with_another_stack_is_named() -> None:
    hang = find_hang(ranks(*[{"silent": 200.0}] * 4), 1800.0)
    assert hang and hang.numbers == (0, 1, 2, 3)
    assert "ranks 0-1 on node1, ranks 2-3 on node2 hang in step 58" in describe(hang)
    assert minority_ranks({0: "all_reduce", 1: "all_reduce", 2: "read", 3: "all_reduce"}) == [2]
    assert describe(hang, [2]).startswith("rank 2 on node2 hangs")
    assert minority_ranks({0: "a", 1: "b"}) == []


def test_ranks_that_wait_for_one_at_work_do_not_hang() -> None:
    """Only rank 0 writes a checkpoint, for longer than a step may take."""
    waiting = {"silent": 200.0, "turn": 4}
    at_work = {"section": "checkpoint", "place": "", "turn": 3, "silent": 200.0}
    assert find_hang(ranks(at_work, waiting), 1800.0) is None
    assert find_hang(ranks({**at_work, "silent": 1801.0}, waiting), 1800.0)


def test_a_rank_that_is_done_waits_for_nobody() -> None:
    done = {"process": ENDED, "section": "end", "silent": 5000.0}
    assert find_hang(ranks(done, done), 10.0) is None
    hang = find_hang(ranks({"silent": 200.0}, {**done, "process": GONE, "section": "step"}), 1800.0)
    assert hang and hang.numbers == (1,) and "its process has ended" in describe(hang)


def test_a_hang_outside_of_steps_is_described() -> None:
    hang = find_hang(ranks({"section": "validation", "place": "", "batch": 7, "silent": 2000.0}), 1800.0)
    assert (
        hang
        and describe(hang) == "rank 0 on node1 hangs in the section 'validation' after 7 batches, for 2000 s."
    )


def test_numbers_in_spans() -> None:
    assert rank_names([3]) == "rank 3"
    assert rank_names([5, 0, 1, 2]) == "ranks 0-2,5"


def test_the_stacks_of_a_program_are_its_own() -> None:
    """Not those of the process that waits for it, which would answer SIGUSR2."""
    if not Path(sys.executable).with_name("py-spy").exists():
        pytest.skip("needs py-spy")
    inner = "import time\ndef computes():\n    print(flush=True)\n    time.sleep(60)\ncomputes()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        rank = replace(RANK, pid=process.pid, started=int(process_start(process.pid) or 0), section="program")
        found = collect([rank], Path("/nowhere"))
        process.kill()
        process.stdout.close()
    assert "computes" in found[0], found
