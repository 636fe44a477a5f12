"""How ranks share the work in Lightning, one file per strategy; `make` turns the name of `strategy=` into Lightning's object.

`ddp` and `fsdp` build on torch's, `dp` on DataParallel, `horovod` sends gradients itself (`horovod_gradients`). `environment` gives
Lightning the ranks that `train_anywhere.distributed` has found, `store` lets them meet where they should, `device` picks this rank's.
"""
