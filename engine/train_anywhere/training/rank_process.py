"""The process of one rank: what training needs besides the configuration."""

from collections.abc import Callable
from dataclasses import dataclass, field

from train_anywhere.distributed.topology import Topology
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import RunRecorder
from train_anywhere.training.stop import Stop


@dataclass(frozen=True)
class RankProcess:
    """The process of one rank of a run.

    Attributes:
        stop: flag set by a signal; training then ends after the current step, with a checkpoint.
        recorder: writes run.json; None on other ranks than 0.
        heartbeat: reports the state of this rank to the monitor process of the node; the default is invisible to it.
        disconnect: called after a failure was reported: other ranks end when they lose the connection to this one.
    """

    run: RunDir
    topology: Topology
    stop: Stop
    recorder: RunRecorder | None = None
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    disconnect: list[Callable[[], None]] = field(default_factory=list)
