"""Files, folders and the terminal, with the standard library alone; every other package may use it.

- `atomic`: files are replaced in one step, and no file of the user is lost.
- `ordinary`: opens files and makes folders without following a link or waiting for a pipe.
- `marked`: the folders that this project made, and how it recognises them.
- `node_disk`: what all jobs of a user share on a node's own disk.
- `removal`: the only place that removes anything.
- `plain_json`: JSON that every parser accepts.
- `root`: where the project and the engine are.
- `clock`: the time by a shared disk's clock.
- `typed_paths`: paths with the links that the user sees.
- `telling`: progress in bytes.
- `output`: output that survives a closed terminal, a broken pipe, a full disk.
"""

from train_anywhere.files.root import ENGINE, ROOT, with_engine

__all__ = ["ENGINE", "ROOT", "with_engine"]
