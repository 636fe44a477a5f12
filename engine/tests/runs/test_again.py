"""The answer to the batch script: failed ranks are started again or not."""

import os
from pathlib import Path

import pytest

from train_anywhere.errors import REFUSED, STOPPED
from train_anywhere.job.restart import Decision, Failure, Nodes, decide, read_failure
from train_anywhere.runs.attempts import (
    CAUSE,
    NODE,
    add_bad_node,
    claim_first,
    describe_exit_code,
    read_claim,
)
from train_anywhere.runs.folder import RunDir, create
from train_anywhere.runs.recorder import RunRecorder

NONE = Nodes((), (), 1)
JOB = {"SLURM_JOB_ID": "7", "TRAIN_HOSTS": "node1:1,node2:1"}


@pytest.fixture(autouse=True)
def in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRAIN_STARTED", "1700000000")


def new_run(folder: Path) -> RunDir:
    run = create(folder, "a")
    run.config.write_text("seed: 1\n")
    return run


def failing(run: RunDir, *steps: int) -> None:
    for step in steps:
        recorder = RunRecorder(run)
        recorder.record_start(2, JOB)
        recorder.record_first_step(0)
        recorder.steps_done = lambda step=step: step  # type: ignore[misc]
        recorder.record_failure("an error")


def asked(
    run: RunDir,
    retries: int,
    used: int = 0,
    nodes: Nodes = NONE,
    requeue: bool = False,
    code: int = 1,
    program: bool = False,
) -> Decision:
    failure = read_failure(run, code, program, read_claim(run, CAUSE, os.environ), os.environ)
    return decide(failure, nodes, retries, used, requeue)


def test_as_often_as_retries_allow(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    failing(run, 5)
    reason = "the ranks failed after step 5: an error; retry 1 of 2, from the newest checkpoint."
    assert asked(run, 2) == Decision(0, reason)
    failing(run, 9)
    assert asked(run, 2, 1).code == 0
    failing(run, 12)
    last = asked(run, 2, 2)
    assert last.code == 1 and "cluster.retries=2 allows no more" in last.reason


def test_a_failure_that_repeats_at_the_same_step_ends_the_job(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    failing(run, 3, 5, 5)
    claim_first(run, CAUSE, "rank 1 of 2 on node2: LookupError: row 42")
    cause = "the ranks failed after step 5: rank 1 of 2 on node2: LookupError: row 42"
    assert asked(run, 9) == Decision(1, f"not restarted: {cause}, 2 times in a row.")


def test_three_starts_without_a_new_step_end_the_job_whatever_the_error() -> None:
    failure = Failure(137, 5, 1, "")
    for nodes in (NONE, Nodes(("a", "b"), ("a",), 1)):
        decision = decide(failure, nodes, 9, 0, True, stuck=3)
        assert decision.code == 1 and "3 starts in a row made no new step" in decision.reason


def test_those_of_another_job_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path)
    failing(run, 5)
    monkeypatch.setitem(JOB, "SLURM_JOB_ID", "8")
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    failing(run, 5)
    assert asked(run, 1).code == 0


FAILED = Failure(1, 5, 1, "an error")
USED = tuple(f"node{n}" for n in range(1, 17))
STARTS = (
    "node1 does not answer any more: the ranks start on node2, node3, node4, node5, node6, node7 and 2 more"
)


@pytest.mark.parametrize(
    ("failure", "nodes", "retries", "code", "says"),
    [
        (FAILED, Nodes(USED[:3], (USED[0], USED[2]), 2), 0, 0, "node2 does not answer any more"),
        (
            FAILED,
            Nodes(USED[:3], (USED[0], USED[2]), 3),
            0,
            STOPPED,
            "2 left are fewer than 3: requeueing the job",
        ),
        (FAILED, Nodes(USED, USED[1:], 8, (8, 16)), 0, 0, STARTS),  # as many as share the batch evenly
        (FAILED, Nodes(USED, USED[9:], 8, (8, 16)), 0, STOPPED, ""),
        (Failure(137, 5, 2, ""), Nodes(USED[:2], USED[:1], 1), 0, 0, ""),  # a dead node explains it
        (Failure(137, 5, 2, ""), NONE, 5, 1, ""),
        (Failure(REFUSED, 0, 1, ""), NONE, 5, 1, ""),  # ranks that refused would refuse again
    ],
)
def test_on_the_nodes_that_answer(failure: Failure, nodes: Nodes, retries: int, code: int, says: str) -> None:
    decision = decide(failure, nodes, retries, 0, True)
    assert decision.code == code and says in decision.reason


def test_a_program_is_started_again_as_often_as_retries_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps are unknown, and 2 is its own exit code, not that of ranks that refuse to start."""
    run, reasons = new_run(tmp_path), []
    for start, code in enumerate((0, 0, 1)):
        monkeypatch.setenv("TRAIN_STARTED", f"170000000{start}")
        RunRecorder(run).record_start(2, JOB)
        RunRecorder(run).record_failure("an error")
        claim_first(run, CAUSE, "rank 1: train.py ended with exit code 2")
        decision = asked(run, 2, start, code=2, program=True)
        assert decision.code == code
        reasons.append(decision.reason)
    assert reasons[1] == "rank 1: train.py ended with exit code 2; retry 2 of 2."
    assert "cluster.retries=2 allows no more" in reasons[2] and "step" not in "".join(reasons)
    monkeypatch.setenv("TRAIN_STARTED", "1700000009")  # refused before the program was started
    RunRecorder(run).record_start(2, JOB)
    assert asked(run, 2, code=2, program=True).code == 1


def test_a_node_that_fails_twice_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the queue where all nodes are needed, at once where fewer are enough."""
    run = new_run(tmp_path)
    for number, (node, step) in enumerate((("node2.cluster", 5), ("node1", 7), ("node2.cluster", 9))):
        monkeypatch.setenv("TRAIN_STARTED", str(number))
        failing(run, step)
        claim_first(run, NODE, node)
    assert asked(run, 2, 2).code == 1, "nothing requeues it"
    assert asked(run, 3, 2, requeue=True).code == 0
    reason = (
        "the ranks failed after step 9: an error; not the first time on node2: requeueing the job without it."
    )
    assert asked(run, 2, 2, requeue=True) == Decision(STOPPED, reason, "node2")
    all_three = ("node1", "node2", "node3")
    decision = asked(run, 0, 0, Nodes(all_three, all_three, 2))
    assert (decision.code, decision.without) == (
        0,
        "node2",
    ) and "the ranks start on node1, node3." in decision.reason
    for node in ("node2", "node4"):
        add_bad_node(run, node)
    assert (run.path / "bad_nodes").read_text() == "node2,node4\n"


def test_exit_codes_in_words() -> None:
    assert describe_exit_code(137) == "signal SIGKILL" and describe_exit_code(1) == "exit code 1"


def test_a_checkpoint_is_progress_that_a_killed_rank_0_did_not_record(tmp_path: Path) -> None:
    """Two failures of ranks that saved checkpoints in between are not at the same step."""
    run = new_run(tmp_path)
    failing(run, 20)
    recorder = RunRecorder(run)
    recorder.record_start(2, JOB)
    recorder.record_first_step(18)
    assert read_failure(run, 137, False, "rank 0 on node1: SIGKILL", JOB).same == 1  # at step 18
    run.checkpoints.mkdir(exist_ok=True)
    (run.checkpoints / "newest").write_text("00000020\n")
    assert read_failure(run, 137, False, "rank 0 on node1: SIGKILL", JOB).same == 2
    (run.checkpoints / "newest").write_text("00000024\n")
    failure = read_failure(run, 137, False, "rank 0 on node1: SIGKILL", JOB)
    assert (failure.same, failure.step) == (1, 24)
