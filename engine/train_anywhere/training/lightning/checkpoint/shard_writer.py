"""Write a rank's shards to the node's disk first, then copy them into the run folder."""

from collections.abc import Callable
from pathlib import Path

from torch import futures
from torch.distributed.checkpoint import FileSystemWriter, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult

from train_anywhere.checkpoints.disk.manifest import copy_file, list_files
from train_anywhere.checkpoints.disk.writes import find_disk_error
from train_anywhere.files.owned_folder import OwnedFolder
from train_anywhere.files.removal import make_empty, remove


class ShardWriter(FileSystemWriter):
    """Writes shards to a shared disk as whole files: torch writes tensor by tensor, which is slow there.

    If the node's disk fails, the shards are written directly into the run folder.

    Args:
        folder: the shared folder for the shards of all ranks.
        local: this rank's folder on the node's disk; None: write directly into `folder`.
        report: prints a line; called from the writing thread.
    """

    def __init__(self, folder: Path, local: OwnedFolder | None, report: Callable[[str], None]) -> None:
        super().__init__(folder)
        self.folder, self.local, self.report = folder, local, report

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> futures.Future[list[WriteResult]]:
        """Write this rank's part. Raises OSError if the shared disk fails."""
        written = self._write_locally(self.local, plan, planner) if self.local else None
        if not written or not self.local:
            return super().write_data(plan, planner)
        for name in list_files(self.local.path):
            copy_file(self.local.path / name, self.folder / name)
        remove(self.local)
        return written

    def _write_locally(
        self, local: OwnedFolder, plan: SavePlan, planner: SavePlanner
    ) -> futures.Future[list[WriteResult]] | None:
        """Write this rank's part to the node's disk; return None, after a printed line, if that disk fails."""
        try:
            make_empty(local, private=True)
            self.path, self.sync_files = local.path, False
            return super().write_data(plan, planner)
        except Exception as error:
            trouble = find_disk_error(error)
            if not trouble:
                raise
            remove(local)
            self.report(
                f"can't write a part of a checkpoint to {local.path} ({trouble.strerror or trouble}); writing to the run folder instead."
            )
            return None
        finally:
            self.path, self.sync_files = self.folder, True
