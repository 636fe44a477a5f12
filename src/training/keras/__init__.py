"""Training with Keras 3 on TensorFlow; `run.train` is the way in.

In order: `run.train` chooses devices and makes the strategy (`strategies/make.py`), before anything else of TensorFlow.
`run.train_and_test` makes the model (`module.py`), restores a checkpoint and broadcasts rank 0's state. `run.fit` calls Keras' `fit`
from the current `Position` on, and `TrainingCallback` does the rest between its steps.

What Keras forces to differ from Lightning: there is no Trainer, so one callback has the duties of Lightning's
`MetricsCallback`, `EarlyStop` and `CheckpointCallback`, since their order matters and only the strategy knows the other
ranks. Position and early stopping are a value of ours (`position.py`), written beside the variables, which hold random states too.
`MetricsWriter` (`tensorboard.py`) replaces Lightning's loggers.
"""

import logging
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only; 0 shows everything
# TensorFlow's own name for the number of threads, which is limited when ranks share a machine
if "OMP_NUM_THREADS" in os.environ:
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", os.environ["OMP_NUM_THREADS"])

logging.getLogger("tensorflow").setLevel(logging.ERROR)
