"""Reports of each rank with `monitor.ranks=true`: a line in the log for people, ranks/<rank>.json for programs."""

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from train_anywhere.distributed.network.addresses import node_name
from train_anywhere.distributed.topology import Topology
from train_anywhere.files.atomic import read_text, write_atomic
from train_anywhere.files.ordinary import make_folder
from train_anywhere.files.plain_json import dumps, loads
from train_anywhere.runs.folder import RunDir


def report_location(run: RunDir, topology: Topology) -> None:
    """Report the node of this rank and the program that launched it."""
    host = node_name()
    line = (
        f"rank {topology.rank} of {topology.world_size}: local rank {topology.local_rank} of "
        f"{topology.local_world_size} on node {topology.node_rank} ({host}), started by {topology.launched_by}\n"
    )
    print(line, end="", flush=True)  # in one write: other ranks print at the same time
    _record(run, topology.rank, {"host": host, "launched_by": topology.launched_by})


def report_weights(run: RunDir, topology: Topology, weights: Iterable[bytes]) -> None:
    """Report a checksum of the bytes of this rank's weights, in order: ranks with equal weights report the same."""
    digest = hashlib.sha256()
    for part in weights:
        digest.update(part)
    checksum = digest.hexdigest()[:16]
    print(f"rank {topology.rank} of {topology.world_size}: weights {checksum}\n", end="", flush=True)
    _record(run, topology.rank, {**read_reports(run).get(topology.rank, {}), "weights": checksum})


def read_reports(run: RunDir) -> dict[int, dict[str, Any]]:
    """Return the reports by rank: `host`, `launched_by` and, after training, `weights`."""
    found = {}
    for path in (run.path / "ranks").glob("[0-9]*.json"):
        with suppress(OSError, ValueError, TypeError):  # an unreadable report counts as none
            found[int(path.stem)] = dict(loads(read_text(path)))
    return found


def _record(run: RunDir, rank: int, facts: dict[str, Any]) -> None:
    folder = run.path / "ranks"
    with suppress(OSError):  # the log has it too
        make_folder(folder)
        write_atomic(folder / f"{rank}.json", dumps(facts))
