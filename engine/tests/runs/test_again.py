"""Whether ranks that failed are started again: what the batch script is answered."""

from pathlib import Path

import pytest

from train_anywhere.errors import REFUSED, STOPPED
from train_anywhere.features.bad_nodes import nodes_file
from train_anywhere.features.restarts.restart import Failure, Nodes, decide, main
from train_anywhere.runs.debug import CAUSE, NODE, claim_first, describe_exit_code
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


def asked(run: RunDir, retries: int, used: int = 0, *more: str) -> int:
    return main([str(run.path), "--code", "1", "--retries", str(retries), "--used", str(used), *more])


def test_as_often_as_retries_allow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(tmp_path)
    failing(run, 5)
    assert asked(run, 2) == 0
    assert (
        "again: the ranks failed after step 5: exit code 1; retry 1 of 2, from the newest checkpoint."
        in capsys.readouterr().err
    )
    failing(run, 9)
    assert asked(run, 2, 1) == 0
    failing(run, 12)
    assert asked(run, 2, 2) == 1
    assert "cluster.retries=2 allows no more" in capsys.readouterr().err


def test_a_failure_that_repeats_at_the_same_step_ends_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path)
    failing(run, 3, 5, 5)
    claim_first(run, CAUSE, "rank 1 of 2 on node2: LookupError: row 42")
    assert asked(run, 9) == 1
    said = capsys.readouterr().err
    assert (
        "not restarted: the ranks failed after step 5: rank 1 of 2 on node2: LookupError: row 42, 2 times in a row"
        in said
    )


def test_those_of_another_job_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path)
    failing(run, 5)
    monkeypatch.setitem(JOB, "SLURM_JOB_ID", "8")
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    failing(run, 5)
    assert asked(run, 1) == 0


def test_on_the_nodes_that_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(tmp_path)
    failing(run, 5)
    nodes = ["--hosts", "node1,node2,node3", "--answer", "node3,node1"]
    assert asked(run, 0, 0, *nodes, "--fewest", "2") == 0
    out, err = capsys.readouterr()
    assert out == "node1\nnode3\n" and "node2 does not answer any more" in err
    assert asked(run, 0, 0, *nodes, "--fewest", "3") == STOPPED
    assert "2 left are fewer than 3: requeueing the job" in capsys.readouterr().err


def test_a_dead_node_explains_a_failure_at_the_same_step() -> None:
    failure = Failure(137, 5, 2, "")
    assert decide(failure, Nodes(("a", "b"), ("a",), 1), 0, 0, True).code == 0
    assert decide(failure, NONE, 5, 0, True).code == 1


def test_ranks_that_refused_would_refuse_again() -> None:
    assert decide(Failure(REFUSED, 0, 1, ""), NONE, 5, 0, True).code == 1


def test_a_program_is_started_again_as_often_as_retries_allow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps are not known, and 2 is its own exit code, not that of ranks that refuse to start."""
    run = new_run(tmp_path)
    run.update(framework="program")
    for start, code in enumerate((0, 0, 1)):
        monkeypatch.setenv("TRAIN_STARTED", f"170000000{start}")
        RunRecorder(run).record_start(2, JOB)
        RunRecorder(run).record_failure("an error")
        claim_first(run, CAUSE, "rank 1: train.py ended with exit code 2")
        assert main([str(run.path), "--code", "2", "--retries", "2", "--used", str(start)]) == code
    printed = capsys.readouterr().err.splitlines()
    assert printed[1] == "again: rank 1: train.py ended with exit code 2; retry 2 of 2."
    assert "cluster.retries=2 allows no more" in printed[2] and "step" not in "".join(printed)
    monkeypatch.setenv("TRAIN_STARTED", "1700000009")  # refused before the program was started
    RunRecorder(run).record_start(2, JOB)
    assert main([str(run.path), "--code", "2", "--retries", "2", "--used", "0"]) == 1


def test_a_node_that_fails_twice_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the queue where all nodes are needed, at once where fewer are enough."""
    run = new_run(tmp_path)
    for number, (node, step) in enumerate((("node2.cluster", 5), ("node1", 7), ("node2.cluster", 9))):
        monkeypatch.setenv("TRAIN_STARTED", str(number))
        failing(run, step)
        claim_first(run, NODE, node)
    assert asked(run, 2, 2) == 1, "nothing requeues it"
    assert asked(run, 3, 2, "--requeue") == 0 and nodes_file.read(run) == []
    assert asked(run, 2, 2, "--requeue") == STOPPED
    said = "again: the ranks failed after step 9: exit code 1; not the first time on node2: requeueing the job without it."
    assert said in capsys.readouterr().err
    assert (run.path / "bad_nodes").read_text() == "node2\n"
    nodes = ["--hosts", "node[1-3]", "--answer", "node[1-3]", "--fewest", "2"]
    assert asked(run, 0, 0, *nodes) == 0
    out, err = capsys.readouterr()
    assert out == "node1\nnode3\n" and "the ranks start on node1, node3." in err
    nodes_file.add(run, "node4")
    assert (run.path / "bad_nodes").read_text() == "node2,node4\n"


def test_exit_codes_in_words() -> None:
    assert describe_exit_code(137) == "signal SIGKILL" and describe_exit_code(1) == "exit code 1"


def test_a_damaged_run_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(tmp_path)
    run.info_file.write_text("{")
    assert asked(run, 1) == 1
    assert capsys.readouterr().err.startswith("error: ")
