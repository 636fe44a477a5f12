"""Training with Keras 3 on TensorFlow; importing this package loads TensorFlow, quietly."""

import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

NOISE = re.compile(r".*(oneDNN custom operations|before absl::InitializeLog).*\n")
"""What TensorFlow 2.21 prints while it is imported, whatever its log level."""


@contextmanager
def without_noise() -> Iterator[None]:
    """Hold back what native code writes to stderr within the block, then write it without `NOISE`."""
    sys.stderr.flush()
    real = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(real, 2)
            os.close(real)
            held.seek(0)
            sys.stderr.write(NOISE.sub("", held.read().decode(errors="replace")))


os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only; 0 shows everything
# Where several ranks share this machine; TensorFlow knows its own name for it only.
if "OMP_NUM_THREADS" in os.environ:
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", os.environ["OMP_NUM_THREADS"])

with without_noise():
    import tensorflow  # noqa: F401

logging.getLogger("tensorflow").setLevel(logging.ERROR)
