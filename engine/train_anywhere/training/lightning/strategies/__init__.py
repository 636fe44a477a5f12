"""Lightning strategies, one file each; `choose` maps the name in `strategy=` to a strategy.

ddp, dp               on torch's DistributedDataParallel and DataParallel
fsdp                  on torch's fully_shard; `blocks` finds the layers to split, `deferred_weights` builds a model without memory
horovod               sends gradients itself
environment           passes the ranks that `train_anywhere.distributed` has found to Lightning; the device of this rank
"""
