"""Tasks: the loss of a batch, and the sums from which the metrics are computed.

1. The network turns a batch into predictions.
2. `step` of the task returns a loss per row, and sums over the batch without padding; `sums` lists their names.
3. The training loop adds up the sums: over batches on the device, over ranks in one reduction every `trainer.log_every_n_steps` steps.
4. `measure` turns the totals into metrics, which go to metrics.csv, TensorBoard, the terminal and `checkpoint.monitor`.

A task has three short files: its sums and metrics here (a subclass of `Task`), and `step` in the folder of each framework.
`configs/task/NAME.yaml` names the classes of the frameworks. `make new-task NAME=mine` writes the files of a new task.
"""
