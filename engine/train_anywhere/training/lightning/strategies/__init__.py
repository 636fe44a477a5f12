"""Lightning strategies, one file each; `choose` maps the name in `strategy=` to a strategy.

ddp, dp               on torch's DistributedDataParallel and DataParallel
fsdp                  on torch's fully_shard; `blocks` finds the layers to split, `deferred_weights` builds a model without memory
horovod               sends gradients itself, see `horovod_gradients`
environment           passes the ranks that `train_anywhere.distributed` has found to Lightning
rank_device           the device of this rank
"""
