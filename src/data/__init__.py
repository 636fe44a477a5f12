"""Data sets as plain numpy (no framework), and the two pipelines that feed them to PyTorch and to TensorFlow."""
