"""Cached values of metrics are dropped when the state below them is replaced."""

from types import SimpleNamespace

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from torchmetrics.aggregation import MeanMetric

from train_anywhere.training.lightning.checkpoint.rank_state import _metric_state, _restore_metric
from train_anywhere.training.lightning.dropin.connector import reduce_logged


def test_a_restored_metric_computes_its_restored_state() -> None:
    saved, metric = MeanMetric(), MeanMetric()
    saved.update(3.0)
    metric.update(1.0)
    assert metric.compute() == 1
    _restore_metric(metric, _metric_state(saved), torch.device("cpu"))
    assert metric.compute() == 3


def test_a_value_reduced_over_ranks_replaces_the_computed_one() -> None:
    meta = _Metadata("training_step", "loss", on_step=False, on_epoch=True, reduce_fx=torch.sum)
    meta.sync = _Sync()
    metric = _ResultMetric(meta, is_tensor=True)
    metric.update(torch.tensor(2.0), 1)
    assert metric.compute() == 2
    results = SimpleNamespace(valid_items=lambda: [("training_step.loss", metric)])
    strategy = SimpleNamespace(
        root_device=torch.device("cpu"),
        global_rank=0,
        world_size=2,
        reduce=lambda values, reduce_op: 2 * values,
    )
    assert reduce_logged(results, strategy, on_step=False, known=set()) == {"training_step.loss"}  # type: ignore[arg-type]
    assert metric.compute() == 4
