"""The log of a failed rank: the full cause once, and a message for each consequence."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tools.testing.frameworks import PAGES
from tools.testing.processes import run_python
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import STOPPED, DataError, LostRankError, ProjectError
from train_anywhere.files import ROOT
from train_anywhere.launch import failure
from train_anywhere.launch.failure import report_failure, save_traceback, wait_for_cause, watch_threads
from train_anywhere.runs.attempts import CAUSE, append_debug, claim_first, read_claim
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import describe_error, display_path
from train_anywhere.testing.plugin import FRAMEWORKS

Train = Callable[..., "CompletedProcess[str]"]
Capture = pytest.CaptureFixture[str]

BASES = {"lightning": "lightning.pytorch", "keras": "keras.callbacks"}
TROUBLE = """
import os, signal
from {base} import Callback

class Trouble(Callback):
    def __init__(self, how):
        super().__init__()
        self.how, self.batches = how, 0

    def on_train_batch_end(self, *arguments, **more):
        self.batches += 1
        if self.batches < 3 or (self.how != "raise everywhere" and os.environ["RANK"] != "1"):
            return
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.how == "asked to stop":
            return os.kill(os.getppid(), signal.SIGTERM)
        raise LookupError(f"nothing in row {{41 + int(os.environ['RANK'])}}")
"""
ALL = (("lightning", "ddp"), ("lightning", "fsdp"), ("keras", "multiworker_mirrored"))
CELLS = [cell for cell in ALL if cell[0] in FRAMEWORKS]


@pytest.fixture
def ended(train: Train, tmp_path: Path) -> Callable[[str, str, str], "CompletedProcess[str]"]:
    """A run of two ranks in which that happens to rank 1, or to all, in the third step."""

    def run(framework: str, strategy: str, how: str) -> "CompletedProcess[str]":
        (tmp_path / "brought.py").write_text(TROUBLE.format(base=BASES[framework]))
        words = (f"framework={framework}", f"strategy={strategy}", "trainer.devices=2", "model=mlp")
        what = ("callbacks.trouble._target_=brought.Trouble", f"callbacks.trouble.how='{how}'")
        quick = ("trainer.max_epochs=500", "trainer.accelerator=cpu", "monitor.tensorboard=false")
        return train(
            *words, *what, *quick, f"paths.results={tmp_path}/results", env={"PYTHONPATH": str(tmp_path)}
        )

    return run


def details(sentence: str) -> str:
    """Return the content of the debug file that a message names."""
    return Path(sentence.rpartition(" Details: ")[2]).read_text()


@pytest.mark.parametrize(("framework", "strategy"), CELLS)
@pytest.mark.slow
def test_a_rank_that_lost_another_one_says_a_sentence(ended, framework, strategy):
    done = ended(framework, strategy, "killed")
    assert done.returncode == 137
    assert not PAGES.search(done.stdout + done.stderr), done.stderr
    [said] = re.findall("error: rank 0 of 2 stops: the connection to another rank was lost .*", done.stderr)
    assert "Traceback (most recent call last)" in details(said)
    assert "rank 1 of 2 ended with signal SIGKILL" in done.stderr


@pytest.mark.parametrize(("framework", "strategy"), CELLS)
@pytest.mark.parametrize("how", ["raise", "raise everywhere"])
@pytest.mark.slow
def test_an_error_of_the_user_s_code_is_in_the_log_once(ended, framework, strategy, how):
    """One traceback, that of the user's error, and a sentence of the other rank."""
    done = ended(framework, strategy, how)
    assert done.returncode == 1
    [folder] = re.findall(r"Run folder: +(\S+)", done.stderr)
    reason = json.loads((ROOT / folder / "run.json").read_text())["attempts"][-1]["reason"]
    assert re.search(r"LookupError: nothing in row 4[12]", reason), reason
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert "frames of the engine and of libraries are left out" in done.stderr
    assert len(re.findall('File "', done.stderr)) == 1, done.stderr
    assert re.search(r"brought.py\", line 18, in on_train_batch_end", done.stderr)
    assert re.search(r"^(\[rank 1\] )?LookupError: nothing in row 4[12]$", done.stderr, re.MULTILINE)
    others = re.findall(r"error: rank \d of 2 (?:failed where|stops: the connection).*", done.stderr)
    assert len(others) == 1, done.stderr
    assert "Traceback" in details(others[0])
    if how == "raise everywhere":
        assert re.search(r"failed where rank \d of 2 did \(LookupError: nothing in row 4\d\)", others[0])


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "strategy"), [("lightning", "ddp"), ("keras", "multiworker_mirrored")])
def test_a_planned_stop_is_a_summary(ended, tmp_path, framework, strategy):
    done = ended(framework, strategy, "asked to stop")
    assert done.returncode == STOPPED, done.stderr
    assert "Stopped:       by SIGTERM" in done.stdout
    assert not PAGES.search(done.stdout + done.stderr), done.stderr
    assert not (tmp_path / "results" / "latest" / "debug").exists()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def test_a_rank_alone_has_its_traceback(run: RunDir, capsys: Capture) -> None:
    for _ in range(2):
        report_failure(run, Topology(), ZeroDivisionError("by nothing"))
    said = capsys.readouterr().err
    assert said.count("Traceback") + said.count("\nFailed:        ZeroDivisionError: by nothing\n") == 2
    assert f"Run folder:    {display_path(run.path)}\n" in said
    assert "correct it, then start again: there is no checkpoint yet" in said
    assert not run.debug.exists()


def test_what_no_disk_takes_is_in_the_log(run, capsys, monkeypatch):
    run.debug.write_text("no folder")
    file = save_traceback(run, Topology(), ValueError("a"), "A sentence.")
    assert file and file.parent != run.debug and "ValueError: a" in file.read_text()
    monkeypatch.setattr("tempfile.mkstemp", no_disk)
    assert save_traceback(run, Topology(), ValueError("b"), "A sentence.") is None
    said = capsys.readouterr().err
    assert said.startswith(f"A sentence. Details: {file}\nA sentence.\n") and "ValueError: b" in said
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    report_failure(run, Topology(), caught.value)
    said = capsys.readouterr().err
    assert "in loads" in said and "left out" not in said


def no_disk(*arguments: str) -> None:
    raise OSError(28, "No space left on device")


def test_nothing_that_was_kept_is_overwritten(run: RunDir) -> None:
    files = {append_debug(run, "rank-1", text) for text in ("one", "two")}
    [file] = files
    assert file and re.search("one\n.*two", file.read_text(), re.DOTALL)


def test_one_of_several_is_the_first_of_its_start(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    for start in ("1795392794", "1795392795"):
        monkeypatch.setenv("TRAIN_STARTED", start)
        assert [claim_first(run, "ValueError-1", f"rank {n}") for n in (2, 0, 2)] == ["rank 2"] * 3
    assert claim_first(run, "ValueError-2", "rank 0") == "rank 0"


def test_a_cause_that_names_a_file_whose_name_is_not_utf_8(run: RunDir) -> None:
    claim_first(run, CAUSE, "rank 1: no file a\udcff")
    assert read_claim(run, CAUSE) == r"rank 1: no file a\udcff"


class Writer(threading.Thread):
    """A helper thread that keeps its error for its user, as that of TensorBoard does."""

    exception: Exception | None = None

    def run(self) -> None:
        """Fail."""
        self.exception = OSError(28, "No space left on device")
        raise self.exception


def test_a_thread_that_hands_on_its_error_says_a_sentence(run, capsys, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    watch_threads(run, Topology())
    for thread in (Writer(), threading.Thread(target=lambda: 1 / 0)):
        thread.start()
        thread.join()
    said = capsys.readouterr().err
    assert said.startswith("A thread ended: OSError: [Errno 28] No space left on device. Details: ")
    assert said.count("Traceback") == 1 and "ZeroDivisionError" in said


def test_a_sentence_of_ours_is_a_consequence_too(run: RunDir, tmp_path: Path) -> None:
    """Later output of libraries to the descriptor goes to the debug file."""
    program = (
        "import os; from pathlib import Path; from train_anywhere.distributed.topology import Topology\n"
        "from train_anywhere.errors import LostRankError; from train_anywhere.launch.failure import report_failure\n"
        "from train_anywhere.runs.folder import RunDir\n"
        f"report_failure(RunDir(Path({str(tmp_path)!r})), Topology(1, world_size=2), LostRankError('rank 1 stops.'))\n"
        "os.write(2, b'[E] frame #0: c10d\\n')"
    )
    done = run_python("-c", program)
    [line] = done.stderr.splitlines()
    assert line.startswith("error: rank 1 stops. Details: ")
    assert "LostRankError" in details(line) and details(line).endswith("frame #0: c10d\n")


def test_ranks_with_the_same_problem_print_it_once(run: RunDir, capsys: Capture) -> None:
    for rank, message in ((1, "x.tar is cut"), (0, "x.tar is cut"), (2, "y.tar is cut")):
        report_failure(run, Topology(rank, world_size=3), DataError(message))
    assert capsys.readouterr().err == "error: x.tar is cut\nerror: y.tar is cut\n"


def test_the_last_lines_name_the_line_of_the_user(run: RunDir, capsys: Capture, tmp_path: Path) -> None:
    """The named line is the user's. With a checkpoint there is a command to resume."""
    (tmp_path / "theirs.py").write_text("import json\n\n\ndef step():\n    json.loads('{')\n")
    scope: dict[str, Any] = {}
    exec(compile((tmp_path / "theirs.py").read_text(), str(tmp_path / "theirs.py"), "exec"), scope)
    (run.checkpoints / "00000012").mkdir(parents=True)
    with pytest.raises(ValueError, match="Expecting") as caught:
        scope["step"]()
    report_failure(run, Topology(), caught.value)
    said = capsys.readouterr().err
    assert "theirs.py:5 in step" in said.partition("Failed:")[2].splitlines()[0]
    assert f"resume={display_path(run.path)}" in said


class Odd(Exception):
    """An error whose message can't be read."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "described"),
    [
        (ProjectError("2 problems:\n  - one"), "2 problems: - one"),
        (ValueError("\n\x1b[2Jcleared\nmore"), r"ValueError: \x1b[2Jcleared"),
        (ValueError("x" * 1000), f"ValueError: {'x' * 300}"),
        (AssertionError(), "AssertionError"),
        (Odd(), "Odd"),
    ],
)
def test_any_error_is_described_in_one_line(error: Exception, described: str) -> None:
    assert describe_error(error) == described


def test_the_cause_of_a_lost_connection_is_the_error_of_the_rank_that_failed_first(run, monkeypatch):
    lost, cause = LostRankError("rank 1 stops."), "rank 1 of 2 on node2: LookupError: row 42"
    thread = threading.Timer(0.3, claim_first, (run, CAUSE, f"{cause}\x1b[2J"))
    thread.start()
    monkeypatch.setattr(failure, "CAUSE_S", 60)
    assert wait_for_cause(run, lost) == rf"{cause}\x1b[2J"
    thread.join()
    assert wait_for_cause(run, ValueError("its own")) == ""
    monkeypatch.setenv("TRAIN_STARTED", "1")  # a later start of the job
    monkeypatch.setattr(failure, "CAUSE_S", 0.2)
    assert wait_for_cause(run, lost) == ""


def test_the_whole_traceback_is_kept_where_the_log_has_a_part(run: RunDir, capsys: Capture) -> None:
    """The user's lines up to the error are in the log. All lines if no file can be written."""
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    report_failure(run, Topology(), caught.value)
    said = capsys.readouterr().err
    [file] = re.findall(
        r"^\(2 frames of the engine and of libraries are left out; .*: (.*)\)$", said, re.MULTILINE
    )
    assert "in raw_decode" in said and "in loads" not in said
    assert "in loads" in Path(file).read_text() and Path(file).parent == run.debug


def test_a_gpu_without_free_memory_gets_the_key_to_type(run: RunDir, capsys: Capture) -> None:
    import torch

    (run.path / "config.yaml").write_text("data: {batch_size: 96}\ntrainer: {micro_batch: 48}\n")
    report_failure(
        run, Topology(), torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    )
    printed = " ".join(capsys.readouterr().err.split())
    assert "CUDA out of memory" in printed and "Memory: trainer.micro_batch=24 computes" in printed
