"""Writes a rank's shards on the node's own disk first, and then copies them into the run folder."""

from collections.abc import Callable
from pathlib import Path

from torch import futures
from torch.distributed.checkpoint import FileSystemWriter, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult

from train_anywhere.checkpoints.disk.manifest import copy_file, payload
from train_anywhere.checkpoints.disk.writes import disk_trouble
from train_anywhere.files.marked import Place
from train_anywhere.files.removal import make_empty, remove


class ShardWriter(FileSystemWriter):
    """Torch writes tensor by tensor, which a shared disk takes slowly; what it gets from here is whole files.

    If the node's disk refuses, the shards are written straight into the run folder.

    Args:
        folder: of all ranks' shards, on the disk that they share.
        local: this rank's own folder on the node's disk; None: write straight into `folder`.
        tell: prints a line; called from the thread that writes.
    """

    def __init__(self, folder: Path, local: Place | None, tell: Callable[[str], None]) -> None:
        super().__init__(folder)
        self.folder, self.local, self.tell = folder, local, tell

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> futures.Future[list[WriteResult]]:
        """Write this rank's part. Raises OSError: the shared disk does not take it."""
        written = self._locally(self.local, plan, planner) if self.local else None
        if not written or not self.local:
            return super().write_data(plan, planner)
        for name in payload(self.local.path):
            copy_file(self.local.path / name, self.folder / name)
        remove(self.local)
        return written

    def _locally(
        self, local: Place, plan: SavePlan, planner: SavePlanner
    ) -> futures.Future[list[WriteResult]] | None:
        """None: the node's disk does not take it, which a line has said."""
        try:
            make_empty(local, private=True)
            self.path, self.sync_files = local.path, False
            return super().write_data(plan, planner)
        except Exception as error:
            trouble = disk_trouble(error)
            if not trouble:
                raise
            remove(local)
            self.tell(
                f"{local.path} takes no part of a checkpoint ({trouble.strerror or trouble}); continuing without it."
            )
            return None
        finally:
            self.path, self.sync_files = self.folder, True
