"""Training with PyTorch Lightning: `run.train`.

setup            what a run needs, created from its configuration
attach           callbacks and loggers of the Trainer, in the order in which Lightning calls them
module           the LightningModule of a task; `dropin` uses a user's module unchanged
rank_splits      the splits of the data for this rank; `batches` loads them
trainer          Lightning's Trainer without its signals, checkpoints and output
hardware         TF32, channels-last weights, torch.compile, fused optimizers
optim            optimizers and torch's schedules
loop             the loop over training steps, metrics, early stopping, a check that something was trained
checkpoint       save and restore checkpoints
strategies       ddp, fsdp, horovod, ...
inference        the trained model, for `train_anywhere.inference`
other_names      `pytorch_lightning` is `lightning.pytorch`
"""

from train_anywhere.training.lightning.other_names import install

install()
