"""Train one rank with Lightning, from the configuration to the outcome."""

import gc
import traceback
from pathlib import Path

from torch import distributed

from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import iterate_causes
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.lightning.compiled_code import keep_compiled_code
from train_anywhere.training.lightning.fit import LightningTraining
from train_anywhere.training.lightning.setup import Setup
from train_anywhere.training.order import index_shards


def train(config: Config, process: RankProcess) -> Outcome:
    """Train from the newest checkpoint, if any, and test. All ranks call it. Raises errors."""
    index_shards(config, process)
    recorder = process.recorder
    try:
        with keep_compiled_code(config, process.topology.rank):
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
