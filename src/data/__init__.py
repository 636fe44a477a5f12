"""Data sets as plain numpy (no framework), and the pipelines that feed them to PyTorch and to TensorFlow."""
