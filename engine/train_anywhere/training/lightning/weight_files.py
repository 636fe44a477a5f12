"""Files of weights that other programs have written or read: safetensors, and checkpoints of Lightning and torch."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor

from train_anywhere.checkpoints.init_run import Shapes
from train_anywhere.distributed.packages import package_problem
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.files.terminal.printable import printable

WRAPPERS = re.compile(r"^module\.|(?<![^.])_orig_mod\.")
"""Matches what DistributedDataParallel and torch.compile add to the names of weights."""


def plain_name(name: str) -> str:
    """Return the name of a weight without the prefixes of wrappers."""
    return WRAPPERS.sub("", name)


class FileWeights:
    """The weights in files, by the names of the weights of a model.

    Attributes:
        shapes: the shape of each weight. One that the model does not have keeps its name in the file.

    Raises:
        CheckpointError: a file can't be read, or holds more than tensors and numbers.
        ConfigError: the package safetensors is missing.
    """

    def __init__(self, files: Sequence[Path], own: Shapes) -> None:
        stored: dict[str, Tensor] = {}
        for file in files:
            stored |= _read_tensors(file)
        rename = choose_names({n: tuple(t.shape) for n, t in stored.items()}, own)
        self._tensors = {rename(name): tensor for name, tensor in stored.items()}
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        """Return one weight."""
        return self._tensors[name]


def choose_names(stored: Shapes, own: Shapes) -> Callable[[str], str]:
    """Return the function from names in a file to names of a model that fits most weights.

    It removes the prefixes of wrappers and of a module that holds the whole network, such as `model.`, and adds those of the model.
    """
    plain = {plain_name(name): name for name in own}
    first = {name.partition(".")[0] + "." for name in map(plain_name, stored)}
    removed = {"", *(first if len(first) == 1 else ())}
    samples = [plain_name(name) for name in (*stored,)[:: max(1, len(stored) // 3)]]
    tails = [sample.removeprefix(prefix) for sample in samples for prefix in removed]
    added = {"", *(n.removesuffix(tail) for tail in tails for n in plain if n.endswith(f".{tail}"))}

    def renaming(before: str, after: str) -> Callable[[str], str]:
        def rename(name: str) -> str:
            new = after + plain_name(name).removeprefix(before)
            return name if name in own and own[name] == stored[name] else plain.get(new, name)

        return rename

    def count(rename: Callable[[str], str]) -> int:
        return sum(own.get(rename(name)) == shape for name, shape in stored.items())

    candidates = [renaming(b, a) for b in sorted(removed, key=len) for a in sorted(added, key=len)]
    return max(candidates, key=count)


def _read_tensors(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        require_safetensors(f"init.run={file}")
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(file))
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zipfile(file))
    except Exception as error:  # torch and safetensors raise many types for damaged files
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        lines = str(error).strip().splitlines() or [type(error).__name__]
        why = f"it has a {named[1]}" if named else printable(lines[0].split(". ")[0])
        raise CheckpointError(
            f"init.run={file} can't be read as weights: {why.rstrip('.')}. It is damaged, or holds more than tensors and numbers, which "
            "could run code; save its state_dict only, best as .safetensors."
        ) from error
    weights = content.get("state_dict", content) if isinstance(content, Mapping) else {}
    found = {str(n): t for n, t in weights.items() if isinstance(t, Tensor)}
    if not found:
        raise CheckpointError(f"init.run={file} holds no weights by name; save the state_dict of a module.")
    return found


def write_safetensors(weights: Mapping[str, Any], file: Path, what: str) -> None:
    """Write tensors to a new file; those that share memory are written once for each name. Raises ConfigError without the package."""
    require_safetensors(what)
    from safetensors.torch import save_file

    file.touch()  # with the permissions of other exports, which save_file would not give it
    mode = file.stat().st_mode
    save_file({n: t.clone().contiguous() for n, t in weights.items()}, file, metadata={"format": "pt"})
    file.chmod(mode)


def require_safetensors(what: str) -> None:
    """Raise ConfigError if the package safetensors is missing; `what` needs it."""
    if problem := package_problem("safetensors", what):
        raise ConfigError(problem)
