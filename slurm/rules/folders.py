"""Rules about folders of this machine, which a dry run elsewhere does not ask."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm.rules.case import Case


def submit_folder(case: Case) -> Iterator[str]:
    """Some sites take jobs only from below certain folders."""
    folders = [_expand(f, case.environ) for f in case.site.submit_below]
    if folders and not any(_below(case.folder, f) for f in folders):
        yield (
            f"{case.cluster} takes jobs only from below {' or '.join(folders)}, and this is {case.folder}; move the project there "
            "(cluster.site.submit_below=[] turns this check off)."
        )


def write_folder(case: Case) -> Iterator[str]:
    """Run folders must be where jobs can write."""
    folders = [_expand(f, case.environ) for f in case.site.write_below]
    results = Path(case.config.paths.results)
    if folders and not any(_below(results, f) for f in folders):
        yield (
            f"jobs on {case.cluster} can write only below {' or '.join(folders)}, and run folders go to {results}; "
            f"use paths.results={folders[0]}/results (cluster.site.write_below=[] turns this check off)."
        )


def writable(case: Case) -> Iterator[str]:
    """The run folder can be made."""
    folder = Path(case.config.paths.results)
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        yield f"run folders can't be written to {case.config.paths.results} ({folder} is not writable); use paths.results=FOLDER."


def _expand(folder: str, environ: Mapping[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda m: environ.get(m[1]) or m[0], folder)


def _below(folder: Path, top: str) -> bool:
    return folder.resolve().is_relative_to(Path(top).resolve()) if top.startswith("/") else False


RULES = (submit_folder, write_folder, writable)
