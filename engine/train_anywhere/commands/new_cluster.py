"""Write a preset for the cluster whose login node this is, from the output of sinfo.

    python slurm/new_cluster.py NAME               # prints configs/cluster/NAME.yaml
    python slurm/new_cluster.py NAME --write       # writes it
    python slurm/new_cluster.py NAME --partition gpu

What sinfo does not show (the form of accounts, modules, rules of the site) is left to you, as comments.
"""

import argparse
import json
import re
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from train_anywhere.config.command.compose import CONFIGS
from train_anywhere.distributed import programs
from train_anywhere.errors import REFUSED, ProjectError, SubmitError
from train_anywhere.slurm.script import units

PRESETS = CONFIGS / "cluster"
SINFO = ["sinfo", "--noheader", "--exact", "--format=%R|%G|%c|%m|%l|%D"]
"""Partition, generic resources, CPUs, memory in MiB, time limit, number of nodes; one line per kind of node."""

LINE = re.compile(r"([^|]+)\|([^|]*)\|([0-9]{1,9})\+?\|([0-9]{1,12})\+?\|([^|]*)\|([0-9]{1,9})")


@dataclass(frozen=True)
class Row:
    """One kind of node of one partition."""

    partition: str
    gpu_type: str | None
    gpus: int
    cpus: int
    mem: int  # MiB
    max_time: str
    nodes: int


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", metavar="NAME", help="of the preset: cluster=NAME")
    parser.add_argument(
        "--partition", help="the default of the preset (otherwise the one with the most GPUs)"
    )
    parser.add_argument(
        "--write", action="store_true", help="write configs/cluster/NAME.yaml instead of printing it"
    )
    parsed = parser.parse_args(arguments)
    try:
        text = preset(
            parsed.name, rows(programs.ask(SINFO, unknown="(?!)")), parsed.partition, socket.gethostname()
        )
        if not parsed.write:
            print(text, end="")
            return 0
        return _write(PRESETS / f"{parsed.name}.yaml", text)
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED


def rows(answer: str) -> list[Row]:
    """The kinds of nodes with GPUs in the output of sinfo; those with the fewest GPUs last.

    Raises:
        SubmitError: the output does not have the requested form.
    """
    found = [row for line in answer.splitlines() if line.strip() for row in _rows_of(line.strip())]
    return sorted(found, key=lambda r: -r.gpus * r.nodes)


def _rows_of(line: str) -> Iterator[Row]:
    match = LINE.fullmatch(line)
    if not match:
        raise SubmitError(
            f"sinfo answered {line[:80]!a}, which is not of the form {SINFO[-1].removeprefix('--format=')}; "
            "write the preset by hand, after the example of configs/cluster/slurm.yaml."
        )
    if "\ufffd" in line:
        raise SubmitError(f"sinfo answered {line[:80]!a}, which is not UTF-8; write the preset by hand.")
    partition, gres, cpus, mem, longest, nodes = match.groups()
    for gpu_type, count in re.findall(r"\bgpu:(?:([^:,(]+):)?([0-9]{1,6})(?=[(,]|$)", gres):
        if int(count):
            yield Row(partition, gpu_type or None, int(count), int(cpus), int(mem), longest, int(nodes))


def preset(name: str, found: Sequence[Row], partition: str | None, host: str) -> str:
    """The preset as YAML.

    Raises:
        SubmitError: there is no node with GPUs, or none in `partition`.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise SubmitError(f"'{name}' can't name a preset; use lower-case letters, digits, _ and -.")
    known = list(dict.fromkeys(r.partition for r in found))
    if not found:
        raise SubmitError(
            "sinfo shows no node with GPUs here; write the preset by hand, after the example of configs/cluster/slurm.yaml."
        )
    if partition and partition not in known:
        raise SubmitError(
            f"sinfo shows no GPUs in partition {partition}; those with GPUs: {', '.join(known)}."
        )
    first = next(r for r in found if r.partition == (partition or known[0]))
    nodes = dict.fromkeys(f"      - {_node(r)}" for r in sorted(found, key=lambda r: r != first))
    longest = f'    max_time: "{first.max_time}"\n' if _is_time(first.max_time) else ""
    gpu_type = f"  gpu_type: {_scalar(first.gpu_type)}\n" if first.gpu_type else ""
    login = re.sub(r"\d+$", "*", host.split(".")[0])
    login = host if login == "*" else f"{login.rstrip('*')}*"
    return (
        "# @package _global_\n"
        f"# {name}. source: sinfo on {host}, checked {time.strftime('%Y-%m')}\n"
        "defaults:\n  - slurm\n  - _self_\n"
        f"cluster:\n  name: {name}\n  partition: {_scalar(first.partition)}\n{gpu_type}"
        "  # account: ...   modules: [...]   comment: ...   the other keys are in configs/train.yaml\n"
        f"  site:\n    hosts: [{json.dumps(login)}]  # login nodes, for cluster=current\n{longest}"
        "    # rules of the site: account, takes_mem, submit_below, ...: engine/train_anywhere/config/cluster.py\n"
        "    nodes:\n" + "\n".join(nodes) + "\n"
    )


def _node(row: Row) -> str:
    kind = f"gpu_type: {_scalar(row.gpu_type)}, " if row.gpu_type else ""
    return f"{{partition: {_scalar(row.partition)}, {kind}gpus: {row.gpus}, cpus: {row.cpus}, mem: {units.short_size(row.mem)}}}"


def _is_time(text: str) -> bool:
    """Whether a limit is a time; it may also be `infinite` or `n/a`."""
    try:
        return units.seconds(text) > 0
    except ValueError:
        return False


def _scalar(text: str) -> str:
    """A word of Slurm's as a YAML string; unquoted, `on`, `1e3` and `a: b` would be something else."""
    plain = re.fullmatch(r"[A-Za-z0-9][\w.-]*", text) and yaml.safe_load(text) == text
    return text if plain else json.dumps(text)


def _write(path: Path, text: str) -> int:
    if path.exists():
        raise SubmitError(f"{path} already exists; remove it first, or choose another name.")
    try:
        with open(path, "x") as file:
            file.write(text)
    except OSError as error:
        raise SubmitError(
            f"{path} can't be written: {error.strerror}; without --write it is printed."
        ) from None
    print(f"wrote {path}; try: python src/train.py cluster={path.stem} dry_run=test")
    return 0
