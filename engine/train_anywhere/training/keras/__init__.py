"""Training with Keras 3 on TensorFlow; `run.train` is the way in.

In order: `run.train` chooses devices and makes the strategy (`strategies/make.py`), before anything else of TensorFlow.
`run.open_task` goes by one of two doors: `make.py` for a task of `src/tasks` (`TaskModule`), `dropin.py` for a `keras.Model` of
anyone, whose variables `building.py` creates and whose metrics `counting.py` reads. A checkpoint is restored, rank 0's state is
broadcast. `loop.fit` makes the steps from the current `Position` on, and `TrainingCallback` does the rest between them, in the order that
matters. `others.py` makes Keras' own callbacks, `agreement.py` compares the weights of all replicas at the end.

What Keras forces to be different: there is no Trainer, and its `fit` reduces logs at each step, so the loop is our own.
Gradients are averaged inside of `optimizer.apply` (`gradients.py`), and batch normalisation may be over all replicas
(`batch_norm.py`). Position and early stopping are a value of ours (`position.py`), written beside the variables, which hold random
states too. `MetricsWriter` (`tensorboard.py`) writes its metrics.
"""

import logging
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only; 0 shows everything
# TensorFlow's own name for the number of threads, which is limited when ranks share a machine
if "OMP_NUM_THREADS" in os.environ:
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", os.environ["OMP_NUM_THREADS"])

logging.getLogger("tensorflow").setLevel(logging.ERROR)
