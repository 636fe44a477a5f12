"""Write the report of a run again: what it did, where the time went, and what to do about it.

    python src/report.py [RUN]      RUN/report.html, for a browser

RUN is a run folder, or the newest run without it. Every run writes its report when it ends; this command does it for one that
is still running, was killed, or was made by an older version.
"""

import argparse
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from src.errors import REFUSED, ProjectError  # noqa: E402
from src.files import ROOT  # noqa: E402
from src.monitor.report.page import write_report  # noqa: E402
from src.runs.folder import open_run  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0, or `REFUSED` with one sentence."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    newest = ROOT / "results" / "latest"
    parser.add_argument("run", nargs="?", default=newest, metavar="RUN", help="run folder (the newest)")
    try:
        written = write_report(open_run(parser.parse_args(arguments).run))
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: the report can't be written: {error}", file=sys.stderr)
        return REFUSED
    print("\n".join(written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
