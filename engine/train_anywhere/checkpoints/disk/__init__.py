"""Files on disk: manifests, checkpoints on the node's disk."""
