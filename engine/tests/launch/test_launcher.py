"""The log of other launchers: a message for an exited rank, and their own errors in full."""

import subprocess
from pathlib import Path

import pytest

from tools.testing.processes import run_python
from train_anywhere.launch import launcher
from train_anywhere.launch.launcher import describe_rank_exit
from train_anywhere.testing.plugin import missing_framework_message

HOROVOD = (
    "Horovod detected that one or more processes exited with non-zero status, thus causing the job to be terminated. "
    "The first process to do so was:\nProcess name: {}\nExit code: {}\n"
)


def launch(run: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return run_python("-m", "train_anywhere.launch.launcher", str(run), *words)


def kept(run: Path) -> str:
    return "\n".join(path.read_text() for path in (run / "debug").glob("*"))


NO_TORCH = missing_framework_message("lightning")
NEEDS_TORCH = pytest.mark.skipif(bool(NO_TORCH), reason=NO_TORCH)
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")


@NEEDS_TORCH
@pytest.mark.parametrize(
    ("ends", "code", "sentence"),
    [
        ("sys.exit(9 * int(os.environ['RANK']))", 9, "rank 1 ended with exit code 9; the other"),
        ("os.environ['RANK'] == '0' and os.kill(os.getpid(), 9); time.sleep(60)", 137, "rank 0 ended with signal SIGKILL; the other"),
    ],
)  # fmt: skip
@pytest.mark.quick(
    "os.environ['RANK'] == '0' and os.kill(os.getpid(), 9); time.sleep(60)-137-rank 0 ended with signal SIGKILL; the other"
)
def test_torchrun_names_the_rank_that_ended(tmp_path: Path, ends: str, code: int, sentence: str) -> None:
    program = tmp_path / "rank.py"
    program.write_text(f"import os, sys, time\n{ends}\n")
    done = launch(tmp_path, *TORCHRUN, "--", str(program))
    assert done.returncode == code, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr and "ChildFailedError" not in done.stderr
    assert "Traceback" in kept(tmp_path) and "ChildFailedError" in kept(tmp_path)


@NEEDS_TORCH
def test_what_torchrun_itself_refuses_is_in_the_log(tmp_path: Path) -> None:
    done = launch(tmp_path, *TORCHRUN[:1], "--nproc-per-node=nonsense", "--", "rank.py")
    assert done.returncode == 1 and "Unsupported nproc_per_node value" in done.stderr
    assert "Traceback" in done.stderr and not kept(tmp_path)


def rendezvous_error(cause: str) -> Exception:
    """As torchrun raises it where its store does not answer."""
    torch = {"__module__": "torch.distributed.elastic.rendezvous.api"}
    error: Exception = type("RendezvousConnectionError", (Exception,), torch)("The connection has failed.")
    error.__cause__ = type("DistNetworkError", (Exception,), {"__module__": "torch.distributed"})(cause)
    return error


def test_a_torchrun_that_lost_the_first_one_is_a_consequence() -> None:
    said = "Connection was likely closed. Did the remote server shutdown or crash?"
    ended = describe_rank_exit(rendezvous_error(f"Failed to recv, got 0 bytes. {said}"))
    assert ended == (1, f"torchrun of this node lost the connection to that of the first one ({said}).")
    at_the_start = "The client socket has timed out after 60000ms while trying to connect to (node1, 29777)."
    assert describe_rank_exit(rendezvous_error(at_the_start)) is None


@pytest.mark.parametrize(
    ("code", "said"),
    [(137, "signal SIGKILL"), (75, "exit code 75"), (1, "exit code 1"), (200, "exit code 200")],
)
def test_horovodrun_names_the_rank_that_ended(code: int, said: str) -> None:
    sentence = f"rank 3 ended with {said}; the other ranks were stopped."
    assert describe_rank_exit(RuntimeError(HOROVOD.format(3, code))) == (code, sentence)


@pytest.mark.parametrize("message", ["", "no route to host", "Horovod detected that no host answers"])
def test_its_other_errors_stay(message: str) -> None:
    assert describe_rank_exit(RuntimeError(message)) is None


def test_a_launcher_that_is_missing_is_in_the_log(tmp_path: Path) -> None:
    done = launch(tmp_path, "nothere.run")
    assert done.returncode == 1 and "No module named 'nothere'" in done.stderr
    assert not kept(tmp_path)


@pytest.mark.parametrize(("node", "is_host"), [("0", 1), ("3", 0)])
def test_torchrun_takes_the_first_node_of_the_step_as_host(node, is_host, monkeypatch):
    """By itself it compares names and addresses, which a node may have other ones of than Slurm."""
    monkeypatch.setenv("SLURMD_NODENAME", "localhost")
    job = {"SLURM_JOB_ID": "7", "SLURM_NODEID": node, "MASTER_ADDR": "localhost", "MASTER_PORT": "10064"}
    environ = {**job, "TRAIN_HOSTS": "other:3,localhost:2", "SLURMD_NODENAME": "localhost"}
    words = ["--nnodes=2", "--", "train.py", "--rdzv-endpoint"]
    meets = ["--rdzv-backend=c10d", "--rdzv-id=7", "--rdzv-endpoint=localhost:10064"]
    own = ["--nproc-per-node=2", *meets, f"--rdzv-conf=is_host={is_host}", "--local-addr=localhost"]
    assert launcher.add_rendezvous(words, environ) == [*own, *words]
    alone = ["--standalone", "--", "train.py"]
    assert launcher.add_rendezvous(alone, {}) == alone
