"""Write docs/reference/gpus.md from the files in `results/`, which `make gpu-check` writes.

python -m benchmarks.gpu.page
"""

import datetime
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
RESULTS = Path(__file__).parent / "results"
PAGE = ROOT / "docs/reference/gpus.md"

OLD = 90
"""Days after which a result is marked as old, counted to the date of this version in CITATION.cff."""

INTRO = """\
# Results on GPUs

<!-- `make gpu-check` writes this page from engine/benchmarks/gpu/results/. -->

```bash
make gpu-check PYTHON=python3
```

tests this project on the GPU of your machine in about nine minutes and writes one JSON file. Send it with a pull request: each file
is a section of this page. "by hand" is the same training in a loop without this project.
"""


def make_page() -> str:
    """Return the page as Markdown."""
    results = [json.loads(path.read_text()) for path in RESULTS.glob("*.json")]
    newest = sorted(results, key=lambda result: result["date"], reverse=True)
    return INTRO + "".join(make_section(result) for result in newest)


def make_section(result: dict[str, Any]) -> str:
    """Return the section of one file: chip, versions, what makes it old, and a table of its rows."""
    versions = [
        f"{name} {value}" for name, value in result.items() if name not in ("chip", "date", "rows", "wrong")
    ]
    notes = [", ".join([result["date"], *versions]) + "."]
    released = re.search(r"^date-released: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)
    locked = re.search(r"^torch==([\d.]+)", (ROOT / "requirements/lightning.txt").read_text(), re.M)
    days = (
        datetime.date.fromisoformat(released[1]) - datetime.date.fromisoformat(result["date"])
        if released
        else None
    )
    if days and days.days > OLD:
        notes.append(f"**Older than {OLD} days.**")
    if locked and result.get("torch", locked[1]) != locked[1]:
        notes.append(f"**Measured with another torch than this version installs, {locked[1]}.**")
    rows = [f"| {name} | {found} |" for name, found in result["rows"].items()]
    wrong = (
        f"{result['wrong']} of {len(rows)} results are wrong."
        if result["wrong"]
        else "All results are right."
    )
    return "\n".join(
        ["", f"## {result['chip']}", "", " ".join([*notes, wrong]), "", "| | |", "|---|---|", *rows, ""]
    )


if __name__ == "__main__":
    PAGE.write_text(make_page())
