"""The training loops of Lightning and Keras, and the rules that they share.

`launch/rank.py` calls `run.train` of one framework on every rank. Both frameworks work in this order:

1. `plan` turns `trainer.*`, the batch size and the lengths of the data into numbers of batches and steps.
2. The model, the strategy and the devices are created, and the ranks connect to each other.
3. Rank 0 opens the checkpoints and finds the newest intact one; all ranks resume from it (messages: `plan`).
4. Every few steps all ranks reduce their metrics, and agree in the same collective whether to stop or save; rank 0 writes the metrics
   (`reporting`, `tracking`). The observers of `train_anywhere.features` are called.
5. Each epoch ends with validation, early stopping and a checkpoint.
6. A signal only sets a flag (`job.rank_process`): the step is finished, a checkpoint is saved, and `train` returns "preempted".
7. At the end the best checkpoint is tested.

`preflight` checks data and packages before a run starts, `prepare` opens data and models before it.
`lightning` and `keras` use the same names for the same duty, and never import each other.
"""
