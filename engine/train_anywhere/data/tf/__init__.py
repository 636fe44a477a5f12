"""Data sets as `tf.data` pipelines. `data/torch` is its mirror image."""
