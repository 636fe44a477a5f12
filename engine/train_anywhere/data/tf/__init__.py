"""Data sets as `tf.data` pipelines; `data/torch` has the same modules for PyTorch."""
