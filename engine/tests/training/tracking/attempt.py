"""One attempt of a run as both loops make it.

attempt.py RUN FIRST LAST END [override ...]

Logs the steps from FIRST to LAST, two metrics each, and a test at the last one. END is the end of the attempt: `completed`,
`preempted`, or `killed` with everything that it started, which may write no more.
"""

import os
import signal
import sys
import time
from pathlib import Path

import psutil

from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.metrics_csv import CsvLog
from train_anywhere.training.tracking import open_loggers


def main(folder: str, first: str, last: str, end: str, *overrides: str) -> None:
    """Run the attempt."""
    run = RunDir(Path(folder))
    config = load(compose(overrides))
    csv = CsvLog(run.metrics_csv)
    loggers = open_loggers(config, run, True)
    csv.resume(int(first) - 1)
    if os.environ.get("KILL_CHILDREN"):
        for process in psutil.Process().children(recursive=True):
            process.kill()
            process.wait()
    for number in range(int(first), int(last) + 1):
        row = {"train/loss": 1 / number, "lr": 0.001}
        csv.write(number, 1, row)
        for logger in loggers:
            logger.log_metrics(row, number)
    if end == "killed":
        time.sleep(float(os.environ.get("SETTLE", "2.5")))
        mine = psutil.Process()
        for process in [*mine.children(recursive=True), mine]:
            process.send_signal(signal.SIGKILL)
    for logger in loggers:
        if end == "completed":
            logger.log_metrics({"test/loss": 0.5}, int(last))
        logger.finalize(end)


if __name__ == "__main__":
    main(*sys.argv[1:])
