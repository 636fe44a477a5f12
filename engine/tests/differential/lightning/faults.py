"""Faults that are planted in the engine, to see that the differential test finds them."""

from typing import Any

from lightning.pytorch.trainer.connectors.data_connector import _DataConnector
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from torch.utils.data import DataLoader

from train_anywhere.training.lightning.run import LightningTraining


def hook_out_of_order() -> None:
    """Call `setup("test")` of a data module before the training."""
    make = LightningTraining.make_model

    def make_model(self: LightningTraining, data: Any) -> Any:
        module = make(self, data)
        if self.loaders.source is not module:
            self.loaders.source.setup("test")
        return module

    LightningTraining.make_model = make_model  # type: ignore[method-assign]


def mean_ignores_rows() -> None:
    """Take the mean of the batches' and ranks' means, whatever their numbers of rows."""

    _ResultCollection._extract_batch_size = lambda *_: 1  # type: ignore[method-assign]


def loader_without_iter() -> None:
    """Read the rows of a user's loader without its own `__iter__`."""
    prepare = _DataConnector._prepare_dataloader

    def prepare_dataloader(self: Any, loader: Any, *arguments: Any, **named: Any) -> Any:
        prepared = prepare(self, loader, *arguments, **named)
        own = isinstance(prepared, DataLoader) and type(prepared).__iter__ is not DataLoader.__iter__
        return DataLoader(prepared.dataset, batch_sampler=prepared.batch_sampler) if own else prepared

    _DataConnector._prepare_dataloader = prepare_dataloader  # type: ignore[method-assign]


FAULTS = {"order": hook_out_of_order, "mean": mean_ignores_rows, "iter": loader_without_iter}
EXPECTED = {"order": ("order",), "mean": ("means", "values in"), "iter": ("rows",)}
"""Beginnings of the kinds of differences that a fault shows."""
