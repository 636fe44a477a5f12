"""Files, folders and the terminal, with the standard library only. Every other package may use it.

atomic         replaces files in one step
ordinary       opens files and makes folders without following a link or waiting for a pipe
marked         folders that this project made; `removal` is the only place that removes anything
node_disk      what the jobs of a user share on the disk of a node
plain_json     JSON that every parser accepts
root           where the project and the engine are
typed_paths    paths with the links that the user sees
disk_clock     the time by the clock of a shared disk
terminal       output that survives a closed terminal; printable text; progress in bytes
"""

from train_anywhere.files.root import ENGINE, ROOT, with_engine

__all__ = ["ENGINE", "ROOT", "with_engine"]
