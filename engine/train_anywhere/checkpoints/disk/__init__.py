"""How the files of a checkpoint reach a disk: manifest and checksums, the copy on the node's own disk, TensorBoard's event files."""
