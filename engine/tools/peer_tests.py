"""Run the tests of Lightning or Keras with runs of this project in place of `Trainer.fit` or `Model.fit`, and print a table.

    git clone --branch 2.6.5 https://github.com/Lightning-AI/pytorch-lightning /tmp/lightning
    python engine/tools/peer_tests.py /tmp/lightning
    python engine/tools/peer_tests.py /tmp/lightning models/test_hooks.py    # one file, or several
    git clone --branch v3.15.1 https://github.com/keras-team/keras /tmp/keras
    python engine/tools/peer_tests.py /tmp/keras

Take the version that is installed here. A test that fails is run again with the framework alone. Those that fail there, too, or that need
an argument that this project sets itself (`SetByProject`), say nothing about this project. Many others test private attributes. Read the
rest: a test of what users see that fails only here is a fault, or a row of docs/concepts/own-code.md.
"""

import argparse
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parent
sys.path[:0] = [str(TOOLS.parent), str(TOOLS.parents[1])]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SHIM, RESULTS = "PEER_TESTS_SHIM", "PEER_TESTS_RESULTS"
"""Variables of the environment of pytest: the module that replaces the framework's own, and the file for the results."""


@dataclass(frozen=True)
class Peer:
    """A framework: the folder of its tests, patterns of their files, and the module that replaces a part of it."""

    tests: str
    files: tuple[str, ...]
    shim: str


PEERS = (
    Peer("tests/tests_pytorch", (
        "loops/**/test_*.py", "models/test_hooks.py", "trainer/test_*.py", "trainer/logging_/test_*.py", "trainer/flags/test_*.py",
        "trainer/optimization/test_*.py", "trainer/properties/test_*.py", "trainer/dynamic_args/test_*.py",
        "trainer/connectors/test_data_connector.py", "trainer/connectors/test_callback_connector.py",
        "trainer/connectors/test_logger_connector.py", "callbacks/test_*.py", "checkpointing/test_*.py", "core/test_datamodules.py",
        "core/test_lightning_module.py", "core/test_lightning_optimizer.py", "core/test_metric_result_integration.py",
    ), "trainer_shim"),
    Peer("keras/src", ("trainers/*_test.py", "callbacks/*_test.py", "trainers/data_adapters/*_test.py"), "keras_shim"),
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """The outcome of a test: passed, failed or skipped, and the first line of its error."""

    test: str
    outcome: str
    error: str


def main() -> None:
    """Run the files of a checkout, and print the table and the errors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("files", nargs="*", help="patterns below the folder of the tests")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for each file")
    parser.add_argument("-k", default="", help="as in pytest")
    options = parser.parse_args()
    peer = next((one for one in PEERS if (options.checkout / one.tests).is_dir()), None)
    if peer is None:
        sys.exit(
            f"{options.checkout} is a checkout of neither Lightning nor Keras: it has no {PEERS[0].tests}."
        )
    start = options.checkout.resolve()
    sys.path.insert(0, str(start))  # the installed Keras has its tests, too
    importlib.import_module(peer.shim)
    files = [
        file for pattern in options.files or peer.files for file in sorted((start / peer.tests).glob(pattern))
    ]
    totals, errors = Counter[str](), dict[str, list[str]]()
    print(f"{'passed':>8}{'failed':>8}{'refused':>8}{'alone':>8}{'skipped':>8}  file", flush=True)
    for file in files:
        name = str(file.relative_to(start / peer.tests))
        found = run_tests(peer, start, [str(file.relative_to(start))], options.timeout, True, options.k)
        failed = [
            one for one in found if one.outcome == "failed" and not one.error.startswith("SetByProject")
        ]
        again = run_tests(peer, start, [one.test for one in failed], options.timeout, False) if failed else []
        alone = {one.test for one in again if one.outcome == "failed"}
        counts = Counter(one.outcome for one in found)
        counts["refused"] = counts["failed"] - len(failed)
        counts["alone"] = len(alone)
        counts["failed"] = len([one for one in failed if one.test not in alone])
        print_row(counts, name)
        totals.update(counts)
        for one in found:
            if one.outcome == "failed" and one.test not in alone:
                errors.setdefault(one.error[:150], []).append(one.test)
    print_row(totals, "all")
    for error, tests in sorted(
        errors.items(), key=lambda item: (item[0].startswith("SetByProject"), -len(item[1]))
    ):
        print(
            f"\n{len(tests)} x {error}",
            *(tests if not error.startswith("SetByProject") else ()),
            sep="\n    ",
        )


def print_row(counts: Counter[str], name: str) -> None:
    """Print the counts of a file."""
    columns = ("passed", "failed", "refused", "alone", "skipped")
    print("".join(f"{counts[column]:8}" for column in columns) + f"  {name}", flush=True)


def run_tests(
    peer: Peer, start: Path, tests: list[str], timeout: int, shim: bool, select: str = ""
) -> list[Result]:
    """Return the results of files or tests, which one process runs; those that it has not reached in time are missing."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results")
        own = {
            RESULTS: str(results),
            SHIM: peer.shim if shim else "",
            "TMPDIR": folder,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        arguments = ["-q", "-p", "peer_tests", "-p", "no:cacheprovider", "-p", "no:testmon", "--timeout=60",
                     f"--basetemp={folder}/base", "-k", select, *tests]  # fmt: skip
        pid = os.fork()  # of a process that has imported the framework, which takes seconds
        if not pid:
            with suppress(BaseException), open(f"{folder}/output", "wb", buffering=0) as output:
                os.setpgid(0, 0)
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os.environ.update(own)
                tempfile.tempdir = None
                os.chdir(start)
                pytest.main(arguments)
            os._exit(0)
        end = time.monotonic() + timeout
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.killpg(pid, signal.SIGKILL)
            time.sleep(0.1)
        if not results.exists():
            print(Path(folder, "output").read_text(errors="replace")[-1000:], file=sys.stderr)
        lines = results.read_text().splitlines() if results.exists() else []
    return [*{one["test"]: Result(**one) for one in map(json.loads, lines)}.values()]


def pytest_configure(config: Any) -> None:
    """Replace what the framework's tests start, in the process of pytest."""
    config.addinivalue_line("markers", "flaky: of pytest-rerunfailures, which may be missing")
    if shim := os.environ.get(SHIM):
        importlib.import_module(shim).install()


def pytest_runtest_logreport(report: Any) -> None:
    """Write the outcome of a test; a later phase that passes does not count."""
    if report.when != "call" and report.passed:
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (
        (str(crash.message) if crash else str(report.longrepr)).strip().splitlines() if report.failed else []
    )
    error = next(iter(lines), "").removeprefix("trainer_shim.").removeprefix("keras_shim.")
    with open(os.environ[RESULTS], "a") as file:
        file.write(json.dumps({"test": report.nodeid, "outcome": report.outcome, "error": error}) + "\n")


if __name__ == "__main__":
    main()
