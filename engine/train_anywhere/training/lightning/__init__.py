"""Training with PyTorch Lightning: `run.train`.

setup            what a run needs, created from its configuration
fit              the run: callbacks and loggers in the order in which Lightning calls them
optim            the optimizer of the configuration and torch's schedules; `dropin` uses a user's module unchanged
loaders          the loaders of this rank, and their processes
trainer          Lightning's Trainer without its signals, checkpoints and output
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
        return ModuleSpec(fullname, self) if (name := lightning_name(fullname)) and find_spec(name) else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of `lightning` in the place of the other one."""
        __import__(same := str(lightning_name(module.__name__)))
        sys.modules[module.__name__] = sys.modules[same]


def lightning_name(name: str) -> str | None:
    """Return the name of a module in `lightning`, or None for another package."""
    package, _, rest = name.partition(".")
    return ".".join([PACKAGES[package], *rest.split(".")]).rstrip(".") if package in PACKAGES else None


def install() -> None:
    """Install the import hook, once, before user code is imported."""
    if not any(isinstance(finder, OtherNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, OtherNames())


install()
