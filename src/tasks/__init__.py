"""What is learnt: the loss of a batch, and sums that become the metrics that are reported.

In order: the network turns a batch into predictions; `step` of the task gives a loss per row, and counts the batch, without padding, as
the numbers named in `sums`; the training loop adds them up over batches on the device, and over ranks in one reduction every
`trainer.log_every_n_steps` steps; `measure` turns the totals into metrics, which go to metrics.csv, TensorBoard, the display and
`checkpoint.monitor`.

A task has three short files: its numbers (`base.Task`, here), and `step` in the folder of each framework. `configs/task/NAME.yaml` names
the last two. A new one: `make new-task NAME=mine` writes them.
"""
