"""Training with Keras 3 on TensorFlow: `run.train`.

native        network, optimizer and batches of a task; `dropin` takes a user's `keras.Model` as it is
module        the training and test step
batches       the batches, shared out by the strategy
loop          epochs, what happens between the steps, metrics
checkpoint    what is saved, and how it is restored
strategies    mirrored, multiworker_mirrored, horovod
inference     the trained model, for `train_anywhere.inference`

Keras has no Trainer, and its `fit` reduces logs at each step, so the loop is this project's.
"""

import logging
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only; 0 shows everything
# TensorFlow's own name for the number of threads, which is limited when ranks share a machine
if "OMP_NUM_THREADS" in os.environ:
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", os.environ["OMP_NUM_THREADS"])

logging.getLogger("tensorflow").setLevel(logging.ERROR)
