"""Data sets as PyTorch loaders. `data/tf` is its mirror image."""
