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
from contextlib import suppress
from subprocess import PIPE, Popen

from train_anywhere import use_tensorflow

use_tensorflow()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only; 0 shows everything
# TensorFlow's variable for the number of threads, which is limited when ranks share a machine
if "OMP_NUM_THREADS" in os.environ:
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", os.environ["OMP_NUM_THREADS"])

logging.getLogger("tensorflow").setLevel(logging.ERROR)

# TF_CPP_MIN_LOG_LEVEL does not hide these: https://github.com/tensorflow/tensorflow/issues/100442. Another process filters them, so
# what TensorFlow prints before an abort is not lost.
HIDDEN = "before absl::InitializeLog|oneDNN custom operations are on"
FILTER = ("grep", "--line-buffered", "-Ev", HIDDEN)
with suppress(OSError):
    own = os.dup(2)
    with Popen(FILTER, stdin=PIPE, stdout=own) as grep:
        os.dup2(grep.stdin.fileno(), 2)  # type: ignore[union-attr]
        try:
            import tensorflow  # noqa: F401
        finally:
            os.dup2(own, 2)
    os.close(own)
