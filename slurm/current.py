"""`cluster=current`: the preset that names this machine among its login nodes."""

import fnmatch
import socket
from collections.abc import Sequence
from pathlib import Path

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
    known = patterns()
    found = [
        name for name, wanted in known.items() if any(fnmatch.fnmatch(h, p) for h in hosts for p in wanted)
    ]
    if len(found) != 1:
        what = f"fits {' and '.join(found)}" if found else "is no login node of a preset"
        raise ConfigError(
            [
                f"cluster=current: this machine ({hosts[0]}) {what}; name one of {', '.join(known)}, or write a preset with "
                "`python slurm/new_cluster.py NAME` (cluster.site.hosts is what is compared)."
            ]
        )
    return [f"cluster={found[0]}" if o == "cluster=current" else o for o in overrides]


def patterns() -> dict[str, list[str]]:
    """Host name patterns of each preset that has some."""
    import yaml

    trees = {p.stem: yaml.safe_load(p.read_text()) for p in sorted(PRESETS.glob("*.yaml"))}
    hosts = {
        name: (tree.get("cluster") or {}).get("site", {}).get("hosts", []) for name, tree in trees.items()
    }
    return {name: wanted for name, wanted in hosts.items() if wanted}
