"""The training loops, and the rules that they share.

`launch/rank.py` calls `run.train` of one framework on every rank. In both, in this order:

1. `plan` turns `trainer.*`, batch size and lengths into numbers of batches and steps.
2. Model, strategy and devices are made; from then on the ranks know each other.
3. Rank 0 opens the checkpoints and finds the newest good one; all ranks resume there (`resuming`).
4. Every few steps all ranks reduce their metrics and agree on stopping and saving in the same collective; rank 0 writes them (`reporting`).
   The observers of `train_anywhere.features` are called.
5. At the end of an epoch: validation, early stopping, a checkpoint.
6. A signal only sets a flag (`stop`): the step is finished, a checkpoint saved, and `train` returns "preempted".
7. At the end the best checkpoint is tested.

`lightning` and `keras` use the same names for the same duty, and never import each other.
"""
