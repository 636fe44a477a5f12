"""Training with PyTorch Lightning: `run.train`.

setup            the Trainer, without its checkpoints and output, and all else that a run needs
run              callbacks and loggers in the order in which Lightning calls them, and what is saved when
optim            the optimizer of the configuration and torch's schedules; `dropin` uses a user's module unchanged
loaders          the loaders of this rank, and their processes
hardware         TF32, channels-last weights, torch.compile, fused optimizers
compiled_code    the code of torch.compile in `cluster.cache`, for starts on other nodes
weights          LoRA, and files of other programs
loop             what happens around training steps: metrics, early stopping, a check that something was trained
private          the private names of Lightning
checkpoint       save and restore checkpoints
strategies       ddp, fsdp, horovod, ...
inference        the trained model, for `train_anywhere.inference`

User code may import `pytorch_lightning`: it gets the classes of `lightning.pytorch`.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from train_anywhere.config.signatures.modules import OTHER_NAMES as PACKAGES


class OtherNames(MetaPathFinder, Loader):
    """Import hook that puts a module of `lightning` in the place of the one with the other name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a module of the other packages, None for other modules."""
        package, dot, rest = fullname.partition(".")
        same = f"{PACKAGES.get(package)}{dot}{rest}"
        return ModuleSpec(fullname, self, origin=same) if package in PACKAGES and find_spec(same) else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of `lightning` in the place of the other one."""
        assert module.__spec__ and module.__spec__.origin
        sys.modules[module.__name__] = import_module(module.__spec__.origin)


sys.meta_path.insert(0, OtherNames())  # before user code is imported
