"""Training with Keras 3 on TensorFlow; `run.train` is the way in."""

import logging
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only; 0 shows everything
# Where several ranks share this machine; TensorFlow knows its own name for it only.
if "OMP_NUM_THREADS" in os.environ:
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", os.environ["OMP_NUM_THREADS"])

logging.getLogger("tensorflow").setLevel(logging.ERROR)
