"""Write a preset for the cluster whose login node this is, from the output of sinfo.

    python slurm/new_cluster.py NAME               # print configs/cluster/NAME.yaml
    python slurm/new_cluster.py NAME --write       # write it
    python slurm/new_cluster.py NAME --partition gpu

Comments in the preset mark what sinfo does not show: the format of accounts, modules, rules of the site.
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
from train_anywhere.files.terminal.fit import FittedHelp
from train_anywhere.slurm.script import units

PRESETS = CONFIGS / "cluster"
SINFO = ["sinfo", "--noheader", "--exact", "--format=%R|%G|%c|%m|%l|%D"]
"""The command whose output has one line per kind of node: partition, generic resources, CPUs, MiB, time limit, number of nodes."""

LINE = re.compile(r"([^|]+)\|([^|]*)\|([0-9]{1,9})\+?\|([0-9]{1,12})\+?\|([^|]*)\|([0-9]{1,9})")


@dataclass(frozen=True)
class Row:
    """One kind of node in one partition."""

    partition: str
    gpu_type: str | None
    gpus: int
    cpus: int
    mem: int  # MiB
    max_time: str
    nodes: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or write the preset and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=FittedHelp)
    parser.add_argument("name", metavar="NAME", help="name of the preset, for cluster=NAME")
    parser.add_argument("--partition", help="its default partition (default: the one with the most GPUs)")
    parser.add_argument("--write", action="store_true", help="write the file instead of printing it")
    parsed = parser.parse_args(arguments)
    try:
        found = parse_rows(programs.query(SINFO, unknown="(?!)"))
        text = make_preset(parsed.name, found, parsed.partition, socket.gethostname())
        if not parsed.write:
            print(text, end="")
            return 0
        return _write(PRESETS / f"{parsed.name}.yaml", text)
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED


def parse_rows(answer: str) -> list[Row]:
    """Return the kinds of nodes with GPUs in the output of sinfo, those with the most GPUs first.

    Raises:
        SubmitError: the output does not have the requested format.
    """
    found = [row for line in answer.splitlines() if line.strip() for row in _parse_line(line.strip())]
    return sorted(found, key=lambda r: -r.gpus * r.nodes)


def _parse_line(line: str) -> Iterator[Row]:
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


def make_preset(name: str, found: Sequence[Row], partition: str | None, host: str) -> str:
    """Return the preset as YAML.

    Raises:
        SubmitError: no node has GPUs, or none in `partition`.
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
        f"# {name}.\n"
        "defaults:\n  - slurm\n  - _self_\n"
        f"cluster:\n  name: {name}\n  partition: {_scalar(first.partition)}\n{gpu_type}"
        "  # account: ...   modules: [...]   comment: ...   the other keys are in configs/train.yaml\n"
        f"  site:\n    source: {json.dumps(f'sinfo on {host}')}\n    checked: {time.strftime('%Y-%m-%d')}\n"
        f"    hosts: [{json.dumps(login)}]  # login nodes, for cluster=current\n{longest}"
        "    # rules of the site: account, takes_mem, submit_below, ...: engine/train_anywhere/config/cluster.py\n"
        "    nodes:\n" + "\n".join(nodes) + "\n"
    )


def _node(row: Row) -> str:
    kind = f"gpu_type: {_scalar(row.gpu_type)}, " if row.gpu_type else ""
    return f"{{partition: {_scalar(row.partition)}, {kind}gpus: {row.gpus}, cpus: {row.cpus}, mem: {units.short_size(row.mem)}}}"


def _is_time(text: str) -> bool:
    """Return whether a limit is a time; it may also be `infinite` or `n/a`."""
    try:
        return units.seconds(text) > 0
    except ValueError:
        return False


def _scalar(text: str) -> str:
    """Return a string of Slurm in YAML; without quotes `on`, `1e3` and `a: b` would be other values."""
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
