"""Resolve `cluster=current` to the preset of this machine."""

import fnmatch
import os
import shutil
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

from train_anywhere.config.cluster import Cluster
from train_anywhere.config.command.compose import choice_files
from train_anywhere.config.command.yaml_files import read_mapping
from train_anywhere.errors import ConfigError, listed
from train_anywhere.files.removal import print_once


def resolve_current(overrides: Sequence[str], hosts: Sequence[str] | None = None) -> list[str]:
    """Return the overrides with the preset's name for `cluster=current`. Raises ConfigError unless one preset fits."""
    if "cluster=current" not in overrides:
        return [*overrides]
    hosts = hosts or [socket.gethostname(), socket.getfqdn()]
    known, broken = read_host_patterns()
    for sentence in broken:
        print_once(f"note: {sentence}")  # each member of a sweep reads the presets
    found = [name for name, patterns in known.items() if _matches(hosts, patterns)]
    if len(found) != 1:
        what = f"fits {' and '.join(found)}" if found else "is not a login node of any preset"
        raise ConfigError(
            f"cluster=current: this machine ({hosts[0]}) {what}; name one of {listed(known)}, or write a preset with "
            "`python slurm/new_cluster.py NAME --write` (its cluster.site.hosts lists the login nodes).",
            *broken,
        )
    return [f"cluster={found[0]}" if o == "cluster=current" else o for o in overrides]


def _matches(hosts: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(host, pattern) for host in hosts for pattern in patterns)


def is_elsewhere(cluster: Cluster, dry_run: bool | str) -> bool:
    """Return whether a dry run is for another machine than this one.

    A machine of the site is one of its hosts; if the preset names none, it has the folders that the site requires.
    """
    site = cluster.site
    if dry_run is not True:
        return False
    of_site = _matches([socket.gethostname(), socket.getfqdn()], site.hosts)
    if not site.hosts:
        tops = [f.split("/")[1] for f in (*site.submit_below, *site.write_below) if f[:1] == "/"]
        of_site = all(os.path.isdir(f"/{top}") for top in tops)
    return not of_site or not shutil.which({"slurm": "sbatch", "pbs": "qsub"}[cluster.scheduler])


def read_host_patterns(files: Iterable[Path] | None = None) -> tuple[dict[str, list[str]], list[str]]:
    """Return the host name patterns by preset, and a message for each preset that can't be read.

    A broken preset is ignored, so that it does not stop the users of the others.
    """
    known: dict[str, list[str]] = {}
    broken = []
    for file in choice_files("cluster").values() if files is None else files:
        try:
            site = read_mapping(file).get("cluster", {}).get("site", {})
            if hosts := site.get("hosts", []):
                known[file.stem] = [*map(str.strip, hosts if isinstance(hosts, list) else [None])]
        except (AttributeError, TypeError):
            wrong = 'cluster.site.hosts is not a list of strings such as ["login*"].'
            broken.append(f"ignored a preset: {file}: {wrong}")
        except ConfigError as error:
            broken.append(f"ignored a preset: {error}")
        except (ValueError, RecursionError) as error:
            broken.append(f"ignored a preset: {file} is not valid YAML: {error}.")
    return known, broken
