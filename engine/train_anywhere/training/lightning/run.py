"""Train one rank with Lightning, from the configuration to the outcome."""

import gc
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import distributed

from train_anywhere.config.schema import Config
from train_anywhere.data.dataset import Splits
from train_anywhere.data.torch.loader import BatchLoader, EpochSampler
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError, iterate_causes
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.lightning.compiled_code import keep_compiled_code
from train_anywhere.training.lightning.fit import Fit
from train_anywhere.training.lightning.setup import Setup
from train_anywhere.training.order import State, index_shards


def train(config: Config, process: RankProcess) -> Outcome:
    """Train from the newest checkpoint, if any, and test. All ranks call it. Raises errors."""
    index_shards(config, process)
    recorder = process.recorder
    try:
        with keep_compiled_code(config):
            outcome = LightningTraining(config, process).run()
    except BaseException as error:
        if recorder and recorder.steps_done:
            steps = recorder.steps_done()
            recorder.follow(lambda: steps)
        for cause in iterate_causes(error):
            traceback.clear_frames(cause.__traceback__)
        # destroying NCCL's group would wait for dead ranks, and it does not have Gloo's threads
        gloo = distributed.is_initialized() and distributed.get_backend() == "gloo"
        if gloo and not isinstance(error, KeyboardInterrupt):
            process.disconnect.append(end_process_group)
        raise
    if recorder:
        recorder.follow(None)  # the function references the Trainer, and so the process group
    end_process_group()
    return outcome


class LightningTraining(Setup):
    """A run with Lightning, in the steps that src/train.py calls."""

    _fit: Fit | None = None

    def fit(self, trainer: pl.Trainer, model: pl.LightningModule, data: Splits) -> None:
        """Train from the newest checkpoint, if any. Raises TrainingStopped after a signal."""
        self.refuse_others(trainer=(trainer, self.trainer), data=(data, self.data))
        self._fits = True
        self._fit = Fit(self, model)
        self._fit.run()

    def test(self, trainer: pl.Trainer, model: pl.LightningModule, data: Splits) -> None:
        """Test the weights of the best checkpoint, or the current ones. Raises TrainingStopped."""
        if self._fit:
            self._fit.test()
        elif self.loaders.has("test") and is_overridden("test_step", model):
            loaders = self.loaders.arguments("test")
            for values in trainer.test(model, **loaders, verbose=False):
                self.log_test(values)

    def close(self, state: State) -> Outcome | None:
        """Close what `fit` has opened, and return what the run has reached; None without `fit`."""
        return self._fit.close(state) if self._fit else None

    def batches(self) -> Iterator[Any]:
        """Yield this rank's batches of training data without end. Raises ConfigError for other loaders."""
        loader, loop = self.loaders.train, self._own_loop()
        if not isinstance(loader, BatchLoader):
            raise ConfigError("this data has a loader of its own: iterate over it instead of run.batches().")
        assert isinstance(loader.sampler, EpochSampler)
        loop.epoch, first = divmod(loop.step, len(loader))
        loader.sampler.start_at(loop.epoch, first)
        while True:
            loader.sampler.set_epoch(loop.epoch)
            yield from loader
            loop.epoch += 1

    def any_rank(self, flag: bool) -> bool:
        """Return whether the flag is true on a rank. All ranks call this."""
        return bool(self.trainer.strategy.reduce_boolean_decision(flag, all=False))

    def share(self, value: Any) -> Any:
        """Return the value of rank 0. All ranks call this."""
        return self.trainer.strategy.broadcast(value)


def make_setup(config: Config, topology: Topology) -> Setup:
    """Return what a run has before its training, for benchmarks and tests."""
    setup = LightningTraining(config, RankProcess(RunDir(Path()), topology, Stop()))
    setup.make_trainer()
    setup.make_model(setup.open_data())
    return setup


def end_process_group() -> None:
    """Destroy the process group and its threads, when nothing else references it.

    A thread of Gloo frees the tensors that it has sent some time later, for which it needs Python. If Python ends
    before, the process aborts with "terminate called without an active exception", see
    https://github.com/pytorch/pytorch/issues/190489. Dropping the last reference to the group waits for its threads.
    """
    if distributed.is_initialized():
        distributed.destroy_process_group()
        gc.collect()  # the Trainer and its objects
