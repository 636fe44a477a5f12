"""Lightning strategies.

choose               maps the name in `strategy=` to a strategy, and picks the device of this rank
hooks                what a run does in the hooks of every strategy: signals, loaders, checkpoints
ddp                  on torch's DistributedDataParallel, with the ranks that `train_anywhere.distributed` has found
fsdp                 on torch's fully_shard, of the layers that it finds; only the first rank builds the weights
horovod              sends gradients itself
"""
