"""Horovod with Lightning: means over ranks, batch normalization. Real ranks: engine/tests/training/test_horovod.py."""

import pytest

from train_anywhere.distributed.packages import horovod_problem

pytestmark = pytest.mark.horovod


def test_a_mean_over_ranks_has_several_names(require, monkeypatch):
    require(not horovod_problem("torch"), "run `make horovod`")
    import torch
    from torch.distributed import ReduceOp

    from train_anywhere.distributed.topology import Topology
    from train_anywhere.training.lightning.strategies import horovod

    strategy = horovod.HorovodStrategy(Topology(world_size=2, local_world_size=2), torch.device("cpu"))
    monkeypatch.setattr(horovod.hvd, "allreduce", lambda tensor, name, op: 2 * tensor)
    for mean in ("mean", "avg", ReduceOp.AVG):
        assert strategy.reduce(torch.tensor(3.0), reduce_op=mean) == 3
    assert strategy.reduce(torch.tensor(3.0), reduce_op=ReduceOp.SUM) == 6


def test_sync_batchnorm_of_torch_is_refused(require):
    require(not horovod_problem("torch"), "run `make horovod`")
    from torch import nn

    from train_anywhere.errors import ConfigError
    from train_anywhere.training.lightning.strategies.horovod import refuse_torch_sync_batchnorm

    refuse_torch_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(3)), requested=False)
    for model, asked in ((nn.Sequential(nn.SyncBatchNorm(3)), False), (nn.Linear(1, 1), True)):
        with pytest.raises(ConfigError, match=r"horovod\.torch\.SyncBatchNorm .* strategy=ddp"):
            refuse_torch_sync_batchnorm(model, asked)
