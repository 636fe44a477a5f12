"""Write a preset for the cluster whose login node this is, from what Slurm reports.

    python slurm/new_cluster.py NAME               # print configs/cluster/NAME.yaml
    python slurm/new_cluster.py NAME --write       # write it
    python slurm/new_cluster.py NAME --partition gpu
    python slurm/new_cluster.py NAME --on HOST     # on a laptop: write configs/hosts/NAME.yaml, and the preset from that host of ssh

Comments in the preset mark what Slurm does not know: the format of accounts, modules, rules of the site.
"""

import argparse
import json
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from train_anywhere.config.command.compose import list_groups
from train_anywhere.errors import SubmitError, listed
from train_anywhere.files import HAS_PROJECT, OWN, WORK
from train_anywhere.files.terminal.fit import FittedHelp
from train_anywhere.launch.command import run_command
from train_anywhere.runs.summary import as_typed, display_path
from train_anywhere.slurm.script import units
from train_anywhere.slurm.site_facts import SlurmFacts, format_scalar

START = ["slurm/new_cluster.py"] if HAS_PROJECT else ["-m", "train_anywhere", "new-cluster"]
PRESETS = OWN / ("cluster" if HAS_PROJECT else "clusters")
BY_HAND = "write the preset by hand, after the example of configs/cluster/slurm.yaml."


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or write the preset and return the exit code."""
    parser = argparse.ArgumentParser(description=as_typed(__doc__ or ""), formatter_class=FittedHelp)
    parser.add_argument("name", metavar="NAME", help="name of the preset, for cluster=NAME")
    parser.add_argument("--partition", help="its default partition (default: the one with the most GPUs)")
    parser.add_argument("--on", metavar="HOST", help="write the host that ssh calls HOST, and its preset")
    parser.add_argument("--write", action="store_true", help="write the file instead of printing it")
    parser.add_argument("--local", nargs="+", help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    return run_command(lambda: _write_or_print(parsed), overrides=False)


def _write_or_print(parsed: argparse.Namespace) -> int:
    name, partition = parsed.name, parsed.partition
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise SubmitError(f"'{name}' can't name a preset; use lower-case letters, digits, _ and -.")
    if parsed.local:
        file = display_path(OWN / "local" / f"{name}.yaml")
        raise SubmitError(f"--local was removed: write the lines into {file}, each as `account: ACCOUNT`.")
    if parsed.on:
        return write_host(name, parsed.on, [f"--partition={partition}"] if partition else [])
    text = make_preset(name, SlurmFacts(), partition, socket.gethostname())
    if parsed.write:
        return _write(PRESETS / f"{name}.yaml", text)
    print(text, end="")
    return 0


def make_preset(name: str, slurm: SlurmFacts, partition: str | None, host: str) -> str:
    """Return the preset as YAML. Raises SubmitError: Slurm reports no node with GPUs, or none in `partition`."""
    usable = [k for k in slurm.kinds if k.partition in slurm.usable]
    found = sorted(usable, key=lambda k: -k.gpus * slurm.kinds[k])
    known = list(dict.fromkeys(k.partition for k in found))
    if not found:
        why = (slurm.failures.get("GPUs") or next(iter(slurm.failures.values()))).rstrip(".")
        raise SubmitError(f"Slurm shows no node with GPUs here ({why}); {BY_HAND}")
    if partition and partition not in known:
        raise SubmitError(
            f"there are no GPUs for you in partition {partition}; those with GPUs: {listed(known)}."
        )
    if "\ufffd" in "".join(known):
        raise SubmitError(f"a partition has a name that is not UTF-8: {listed(map(ascii, known))}; {BY_HAND}")
    first = next(k for k in found if k.partition == (partition or known[0]))
    limits = {name: slurm.partitions.get(name, {}).get("MaxTime", "") for name in known}
    # a limit may also be `infinite` or `n/a`
    limits = {name: limit for name, limit in limits.items() if re.fullmatch(r"[\d:-]*[1-9][\d:-]*", limit)}
    # a partition without a limit: the site has none
    max_time = max(limits.values(), key=units.seconds) if len(limits) == len(known) else ""
    nodes: dict[str, None] = {}
    for k in sorted(found, key=lambda k: k != first):
        kind = f"gpu_type: {format_scalar(k.gpu_type)}, " if k.gpu_type else ""
        limit = limits.get(k.partition, "")
        time_limit = f", max_time: {format_scalar(limit)}" if limit != max_time else ""
        size = f"gpus: {k.gpus}, cpus: {k.cpus}, mem: {units.short_size(k.mem)}"
        nodes[f"      - {{partition: {format_scalar(k.partition)}, {kind}{size}{time_limit}}}"] = None
    longest = f'    max_time: "{max_time}"\n' if max_time else ""
    gpu_type = f"  gpu_type: {format_scalar(first.gpu_type)}\n" if first.gpu_type else ""
    login = re.sub(r"\d+$", "*", host.split(".")[0])
    login = host if login == "*" else f"{login.rstrip('*')}*"
    return (
        "# @package _global_\n"
        f"# {name}.\n"
        "defaults:\n  - slurm\n  - _self_\n"
        f"cluster:\n  name: {name}\n  partition: {format_scalar(first.partition)}\n{gpu_type}"
        "  # account: ...   modules: [...]   comment: ...   all keys: python src/train.py --help cluster\n"
        f"  site:\n    source: {json.dumps(f'Slurm on {host}')}\n    checked: {time.strftime('%Y-%m-%d')}\n"
        f"    hosts: [{json.dumps(login)}]  # login nodes, for cluster=current\n{longest}"
        "    # rules of the site: account, takes_mem, submit_below, ...: engine/train_anywhere/config/cluster.py\n"
        "    nodes:\n" + "\n".join(nodes) + "\n"
    )


def write_host(name: str, ssh: str, words: Sequence[str]) -> int:
    """Write the file of a host, and its preset unless that exists, as the login node makes it. Raises ProjectError."""
    from train_anywhere.remote import connection, remote_command  # a login node needs no ssh

    if not (file := connection.HOSTS / f"{name}.yaml").exists():
        _write(
            file,
            f"ssh: {format_scalar(ssh)}\nfolder: {format_scalar(f'~/{WORK.name}')}\ncluster: {name}\n"
            + ("" if HAS_PROJECT else "python: .venv/bin/python  # the program's\nsetup: null\n"),
        )
    if name in list_groups()["cluster"]:
        return 0
    done = remote_command.run_new(connection.read_host(name), [*START, name, *words])
    if done.returncode:
        raise SubmitError(f"{name}: {done.stderr.strip().rpartition('error: ')[2]}")
    if not _is_preset(done.stdout):
        raise SubmitError(f"{name} printed no preset of a Slurm cluster: {done.stdout[:200]!a}; {BY_HAND}")
    return _write(PRESETS / f"{name}.yaml", done.stdout)


def _is_preset(text: str) -> bool:
    """Return whether a text from a host has only what `make_preset` writes: the rest of a preset could run commands."""
    try:
        tree = yaml.safe_load(text)
        cluster, defaults = tree.pop("cluster"), tree.pop("defaults")
        site = {"source", "checked", "hosts", "max_time", "nodes"}
        known = cluster.keys() <= {"name", "partition", "gpu_type", "site"} and cluster["site"].keys() <= site
        return not tree and defaults == ["slurm", "_self_"] and known
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def _write(path: Path, text: str) -> int:
    if path.exists():
        raise SubmitError(f"{path} already exists; remove it first, or choose another name.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x") as file:
            file.write(text)
    except OSError as error:
        raise SubmitError(
            f"{path} can't be written: {error.strerror}; without --write it is printed."
        ) from None
    key = "on" if path.parent.name == "hosts" else "cluster"
    own = f"src/train.py {key}={path.stem} dry_run=test"
    other = f"app.py -m hydra/launcher=anywhere hydra.launcher.{key}={path.stem} hydra.launcher.dry_run=test"
    print(f"wrote {path}; try: python {own if HAS_PROJECT else other}", flush=True)
    return 0
