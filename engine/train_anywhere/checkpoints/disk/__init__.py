"""Files on disk: manifests and checksums, checkpoints on the node's local disk, TensorBoard's event files, files of a program."""
