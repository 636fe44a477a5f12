"""Data sets as PyTorch loaders; `data/tf` does the same for TensorFlow."""
