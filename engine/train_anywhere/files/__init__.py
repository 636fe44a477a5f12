"""Files, folders and the terminal, with the standard library only. Every other package may use it.

atomic         replaces files in one step
ordinary       opens files and makes folders without following a link or waiting for a pipe
owned_folder   marks and recognises folders that this project made
removal        the only module that removes anything
node_disk      folders that all jobs of a user share on a node's disk
plain_json     JSON that every parser accepts
root           the folders of the project and of the engine
typed_paths    paths that keep the links the user typed
terminal       output that survives a closed terminal; printable strings; progress in bytes
"""

from train_anywhere.files.root import ENGINE, ROOT, STANDALONE, with_engine

__all__ = ["ENGINE", "ROOT", "STANDALONE", "with_engine"]
