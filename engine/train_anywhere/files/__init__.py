"""Files, folders and the terminal, with the standard library only.

atomic         opens ordinary files without following a link, replaces them in one step; JSON that every parser accepts
removal        marks folders that this project made, and removes them; the only module that removes anything
node_disk      folders on a node's disk: those that all jobs of a user share, and those of a run
copy_files     copies what a program writes there into the run folder; writing in chunks, and errors of a disk
root           the folders of the project and of the engine; paths that keep the links the user typed
terminal       output that survives a closed terminal; printable strings; tables; progress in bytes
"""

from train_anywhere.files.root import ENGINE, HAS_PROJECT, OWN, ROOT, STANDALONE, WORK, with_engine

__all__ = ["ENGINE", "HAS_PROJECT", "OWN", "ROOT", "STANDALONE", "WORK", "with_engine"]
