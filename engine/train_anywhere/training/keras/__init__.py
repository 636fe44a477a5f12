"""Training with Keras 3 on TensorFlow: `run.train`.

dropin        the model of `task._target_`, which is trained unchanged, its optimizers, metrics and callbacks
module        the model with its step functions, variables and metrics
batches       the batches, distributed by the strategy
loop          the one call of `fit`, its callbacks, the work between steps
checkpoint    saving and restoring: variables, position, seeds
strategies    mirrored, multiworker_mirrored, horovod
inference     the trained model, for `train_anywhere.inference`

`keras.Model.fit` drives: it is called once in a process, also in one that resumes.
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
