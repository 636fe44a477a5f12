"""Training with PyTorch Lightning: `run.train`.

attach        callbacks and loggers of the Trainer, in the order in which Lightning calls them
module        the step of a native task; `dropin` takes a user's module as it is
parts         the parts of the data; `batches` loads them
trainer       a Trainer without its own signals, checkpoints and output
loop          metrics, the steps, early stopping
checkpoint    what is saved, and how it is restored
strategies    ddp, fsdp, horovod, ...
inference     the trained model, for `train_anywhere.inference`
"""
