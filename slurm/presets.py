"""`cluster=current`: the preset that names this machine among its login nodes."""

import fnmatch
import socket
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from src.errors import ConfigError

PRESETS = Path(__file__).resolve().parent.parent / "configs" / "cluster"


def name_current(overrides: Sequence[str], hosts: Sequence[str] | None = None) -> list[str]:
    """The overrides with the preset's name in place of `current`.

    Args:
        overrides: what was typed.
        hosts: names of this machine; by default its short and its full one.

    Raises:
        ConfigError: where no preset, or more than one, knows this machine.
    """
    hosts = hosts or [socket.gethostname(), socket.getfqdn()]
    known, broken = patterns()
    for sentence in broken:
        tell(sentence)
    found = [
        name for name, wanted in known.items() if any(fnmatch.fnmatch(h, p) for h in hosts for p in wanted)
    ]
    if len(found) != 1:
        what = f"fits {' and '.join(found)}" if found else "is no login node of a preset"
        raise ConfigError(
            f"cluster=current: this machine ({hosts[0]}) {what}; name one of {', '.join(known)}, or write a preset with "
            "`python slurm/new_cluster.py NAME` (cluster.site.hosts is what is compared).",
            *broken,
        )
    return [f"cluster={found[0]}" if o == "cluster=current" else o for o in overrides]


@cache
def tell(sentence: str) -> None:
    """Print a note, once: each member of a sweep asks for the presets."""
    print(f"note: {sentence}", file=sys.stderr)


def patterns(presets: Path = PRESETS) -> tuple[dict[str, list[str]], list[str]]:
    """Host name patterns of each preset that has some, and a sentence on each preset that can't be read.

    One that is broken is passed over: whoever works on it does not stop the users of the others.
    """
    known, broken = {}, []
    for file in sorted(presets.glob("*.yaml")):
        try:
            if wanted := _hosts(file):
                known[file.stem] = wanted
        except ValueError as error:
            broken.append(f"configs/cluster/{file.name} is passed over: {error}.")
    return known, broken


def _hosts(file: Path) -> list[str]:
    """`cluster.site.hosts` of a preset.

    Raises:
        ValueError: what is wrong with the file, in words.
    """
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"it can't be read ({error.strerror})") from error
    except UnicodeError as error:
        raise ValueError("it is no text in UTF-8") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(f"it is no YAML ({' '.join(str(error).split())})") from error
    hosts: Any = {} if tree is None else tree
    for key in ("cluster", "site", "hosts"):
        if not isinstance(hosts, dict):
            raise ValueError(f"it has no section of keys where `{key}` belongs")
        hosts = hosts.get(key, [] if key == "hosts" else {})
    if tree is None or not isinstance(hosts, list) or not all(isinstance(h, str) for h in hosts):
        raise ValueError(
            "it is empty" if tree is None else 'cluster.site.hosts is no list of texts such as ["login*"]'
        )
    return hosts
