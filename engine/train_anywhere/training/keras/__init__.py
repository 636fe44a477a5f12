"""Training with Keras 3 on TensorFlow: `run.train`.

dropin        the model of `task._target_`, which is trained unchanged, its optimizers, metrics and callbacks
module        the training and test steps
batches       the batches, distributed by the strategy
loop          epochs, the work between steps, metrics
checkpoint    saving and restoring: variables, position, seeds
strategies    mirrored, multiworker_mirrored, horovod
inference     the trained model, for `train_anywhere.inference`

Keras has no Trainer, and its `fit` reduces logs at each step, so the loop is this project's own.
"""

import logging
import os

from train_anywhere import use_tensorflow

use_tensorflow()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only; 0 shows everything
# TensorFlow's variable for the number of threads, which is limited when ranks share a machine
if "OMP_NUM_THREADS" in os.environ:
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", os.environ["OMP_NUM_THREADS"])

logging.getLogger("tensorflow").setLevel(logging.ERROR)
