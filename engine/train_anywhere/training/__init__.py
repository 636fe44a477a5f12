"""The training loops, and the rules that they share.

`launch/rank.py` calls `run.train` of one framework on every rank. In both, in this order:
1. `make_plan` turns `trainer.*`, batch size and lengths into numbers of batches and steps (`plan.py`).
2. Model, strategy and devices are made; from then on the ranks know each other.
3. Rank 0 opens the checkpoints and finds the newest good one; all ranks resume there (`resuming.py`).
4. After each optimizer step: every few steps all ranks reduce their sums (`src/tasks`) and agree on stopping and saving in
   the same collective; rank 0 writes metrics.csv, TensorBoard and the display (`metrics_csv.py`, `progress.py`).
5. At the end of an epoch: validation if due (`plan.py`), early stopping (`early_stopping.py`), a checkpoint.
6. A signal only sets a flag (`stop.py`): the step is finished, a checkpoint saved, and `train` returns "preempted".
7. At the end the best checkpoint is tested, and everything written is in the run folder before `train` returns.

The frameworks' rooms use the same file and class names for the same duty, and never import each other.
"""
