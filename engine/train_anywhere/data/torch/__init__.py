"""Data sets as PyTorch loaders; `data/tf` has the same modules for TensorFlow."""
