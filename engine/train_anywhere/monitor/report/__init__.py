"""The report of a run: RUN/report.html, a single page without external files.

`page` collects the content, in the order of the page, for the template `page.html.j2`. `figures` draws curves as SVG. Sentences and
the use of time come from `monitor/verdicts.py`, and all facts from the files of the run folder (`monitor/run_facts.py`).
"""

import sys

from train_anywhere.config.schema import Config
from train_anywhere.files.terminal.printable import printable
from train_anywhere.monitor.run_facts import Describe
from train_anywhere.runs.folder import RunDir


def write_run_report(config: Config, run: RunDir, describe: Describe) -> list[str]:
    """Write the report and return its lines to print; an error is printed and does not fail the run."""
    if not config.monitor.report or config.trainer.fast_dev_run:
        return []
    try:
        from train_anywhere.monitor.report.page import write_report

        return [printable(line) for line in write_report(run, describe)]
    except Exception as error:
        print(f"The report was not written: {error}", file=sys.stderr, flush=True)
        return []
