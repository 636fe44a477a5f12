"""Headers of public batch scripts and sites' pages as overrides: no valid one is refused.

`headers.tsv` has the options only. These jobs did not run here, so `source` states its reliability: a page of the site, or a
public script. `refused` is part of the message of a refusal, with the reason after a colon.
"""

import csv
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.errors import ConfigError
from train_anywhere.slurm import rules
from train_anywhere.slurm.rules.job_rules import Request
from train_anywhere.slurm.script.render import SHORT
from train_anywhere.slurm.submission.prepare import placeholder_job
from train_anywhere.training.preflight import data_problems


class Row(NamedTuple):
    site: str
    preset: str
    options: str
    source: str
    year: str
    refused: str


TABLE = Path(__file__).with_name("headers.tsv")
ROWS = [Row(*line) for line in csv.reader(TABLE.open(), delimiter="\t", quoting=csv.QUOTE_NONE)][1:]
LONG = {**SHORT, "D": "chdir", "L": "licenses", "w": "nodelist"}
NAMES = (
    "account", "partition", "qos", "reservation", "constraint", "comment", "exclude", "nodelist", "time", "time-min", "nodes", "ntasks",
    "ntasks-per-node", "cpus-per-task", "cpus-per-gpu", "gpus", "gpus-per-node", "gpus-per-task", "gres", "mem", "mem-per-gpu",
    "mem-per-cpu", "mail-type", "mail-user", "exclusive", "output", "error", "job-name", "chdir", "array", "signal", "requeue",
    "no-requeue", "open-mode", "export", "dependency", "ntasks-per-gpu", "ntasks-per-core", "gres-flags", "licenses",
)  # fmt: skip
OURS = {"output", "error", "job-name", "chdir", "array", "signal", "requeue", "no-requeue", "open-mode", "mail-user", "ntasks-per-gpu",
        "ntasks-per-core", "tres-per-task", "get-user-env"}  # fmt: skip
"""Options that the script sets by itself, or that place the tasks of a program that is not a training."""


def read_options(text: str) -> dict[str, str]:
    """Return the options by long names. The last of repeated options counts, as for sbatch."""
    found: dict[str, str] = {}
    words = shlex.split(text)
    for i, word in enumerate(words):
        match = re.fullmatch(r"--([\w-]+)(?:=(.*))?|-(\w)(.*)", word)
        if not match:
            continue
        after = words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("-") else ""
        typed, value = (match[1], match[2]) if match[1] else (LONG.get(match[3], match[3]), match[4] or None)
        typed = {
            "tasks-per-node": "ntasks-per-node",
            "constraints": "constraint",
            "constrain": "constraint",
        }.get(typed, typed)
        name = (
            typed
            if typed in NAMES
            else next((n for n in NAMES if len(typed) > 2 and n.startswith(typed)), typed)
        )
        found[name] = value if value is not None else after
    return found


def gpus(text: str) -> tuple[str | None, int]:
    *kind, number = text.split(":")
    return (kind[0] if kind else None), int(number)


def overrides(row: Row, example: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a preset, and the values that request what the header requests."""
    o = read_options(row.options)
    known = {k: v for k, v in o.items() if k not in OURS}
    tasks = int(known.pop("ntasks", "") or 0)
    given, per_node = int(known.pop("nodes", "") or 0), int(known.pop("ntasks-per-node", "") or 0)
    nodes = given or (tasks // per_node if tasks and per_node else 1) or 1
    per_node = per_node or max(1, -(-tasks // nodes))
    kind, devices = None, 0
    gres = {part.startswith("gpu:"): part for part in known.pop("gres", "").split(",") if part}
    if True in gres:
        kind, devices = gpus(gres[True].removeprefix("gpu:"))
    yield "cluster.gres", gres.get(False)
    for name, share in (("gpus", 1 / nodes), ("gpus-per-task", per_node), ("gpus-per-node", 1)):
        if text := known.pop(name, ""):
            kind, number = gpus(text)
            devices = max(1, int(number * share))
    whole = known.pop("exclusive", None) is not None
    processes = devices or per_node
    cpus = (
        int(known.pop("cpus-per-gpu", "") or 0)
        or int(known.pop("cpus-per-task", "") or 0) * per_node // processes
    )
    yield "trainer.nodes", nodes
    yield "cluster.exclusive", whole
    if devices or not whole:
        yield "trainer.devices", processes
        yield "data.batch_size", nodes * processes
        yield "trainer.accelerator", "gpu" if devices else "cpu"
    if cpus:
        yield "cluster.cpus_per_task", cpus
    if kind or "constraint" in known:
        yield "cluster.gpu_type", kind
    known.pop("account", None)
    yield "cluster.account", example or "acct"
    more = []
    for name, value in known.items():
        if (key := name.replace("-", "_")) in KEYS:
            yield f"cluster.{key}", value
        else:
            more.append(f"--{name}={value}" if value else f"--{name}")
    yield "cluster.extra", more


KEYS = (
    "partition", "qos", "reservation", "constraint", "comment", "exclude", "time", "time_min", "mem", "mem_per_gpu", "mem_per_cpu",
    "mail_type",
)  # fmt: skip


@cache
def preset(name: str) -> Any:
    return compose([f"cluster={name}"])


def verdict(row: Row) -> str:
    """Return the refusals of a header or "". The folders of this machine do not count."""
    tree: Any = deepcopy(preset(row.preset))
    for key, value in overrides(row, tree["cluster"]["site"]["account_example"]):
        section, name = key.split(".")
        tree[section][name] = value
    try:
        config = load(tree)
        request = Request(config, placeholder_job(config, None, None), data_problems)
    except ConfigError as error:
        return " ".join(error.problems)
    return " ".join(rules.problems(request, elsewhere=True))


@pytest.mark.parametrize("rows", [ROWS[::10], ROWS], ids=["some", "all"])
@pytest.mark.quick("some")
def test_no_valid_header_is_refused(rows: list[Row]) -> None:
    wrong = {}
    for row in rows:
        found, (part, _, _) = verdict(row), row.refused.partition(": ")
        if bool(found) != bool(part) or part not in found:
            wrong[f"{row.preset}: {row.options}"] = found or "accepted"
    assert wrong == {}, "\n".join(f"{header}\n    {found}" for header, found in wrong.items())


def test_the_table_has_enough_headers_of_many_sites() -> None:
    assert len(ROWS) >= 100 and len({row.site for row in ROWS}) >= 40
    refused = [row for row in ROWS if row.refused]
    assert all(row.source == "public script" or ": " in row.refused for row in refused)
    assert Counter(row.source for row in ROWS)["site docs"] >= 30
