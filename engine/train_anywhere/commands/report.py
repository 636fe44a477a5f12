"""Write the report of a run: its curves, where the time went, and advice.

    python -m train_anywhere report [RUN]      write RUN/report.html, for a browser
    python -m train_anywhere report SWEEP      write a page that compares the members of a sweep

RUN is a run folder, a run id or a job id; without it, the newest run. SWEEP is the id of a submitted sweep. Every run writes its
report at its end. Use this command for a run that is still training or was killed.
"""

import argparse
import sys
from pathlib import Path

from train_anywhere.errors import REFUSED, ProjectError
from train_anywhere.features import describe
from train_anywhere.files import WORK
from train_anywhere.files.root import shell_folder
from train_anywhere.files.terminal.fit import FittedHelp
from train_anywhere.files.terminal.printable import printable_output
from train_anywhere.monitor.report.page import write_report
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm.status import find_runs
from train_anywhere.slurm.status.gather import gather
from train_anywhere.slurm.status.sweep_page import write_sweep


def main(arguments: list[str] | None = None) -> int:
    """Write the report; return 0, or `REFUSED` after one message."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=FittedHelp)
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="run folder, run id, job id or sweep (default: the newest run)"
    )
    parser.add_argument("--results", default=WORK / "results", help="where run folders are (%(default)s)")
    parsed = parser.parse_args(arguments)
    with printable_output():
        return write(parsed.run, shell_folder() / parsed.results)


def write(named: str | None, results: Path) -> int:
    """Write the report of a run or sweep and return the exit code."""
    try:
        found = find_runs.find(named, results)
        if len(found) > 1:
            print(f"{'Report:':<15}{display_path(write_sweep(found))}")
        else:
            report = gather(found).reports[0]
            print("\n".join(write_report(found[0].folder, describe, None if report.alive else report.state)))
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: the report can't be written: {error}", file=sys.stderr)
        return REFUSED
    return 0
