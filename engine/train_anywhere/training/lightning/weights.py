"""Weights from elsewhere: of another run, files of other programs, and LoRA by peft."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor, nn

from train_anywhere.checkpoints.choice import Shapes, list_weight_files, read_chosen, select_weights
from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.config.choices import Lora
from train_anywhere.config.instantiate import explain_target_errors
from train_anywhere.config.schema import Config, Init
from train_anywhere.distributed.packages import package_problem
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.files.terminal.printable import printable
from train_anywhere.runs.folder import open_run
from train_anywhere.training.adapters import describe_base, hash_weights, refuse_other_base, select_layers
from train_anywhere.training.lightning.checkpoint.contents import WEIGHTS, read_checkpoint
from train_anywhere.training.lightning.checkpoint.rank_state import to_tensor
from train_anywhere.training.plan import refuse_other_framework

WRAPPERS = re.compile(r"^module\.|(?<![^.])_orig_mod\.")
"""Matches what DistributedDataParallel and torch.compile add to the names of weights."""


def plain_name(name: str) -> str:
    """Return the name of a weight without the prefixes of wrappers."""
    return WRAPPERS.sub("", name)


def shapes_of(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight."""
    return {name: tuple(tensor.shape) for name, tensor in weights.items()}


def load_initial_weights(init: Init, module: nn.Module, report: Callable[[str], None]) -> None:
    """Load the weights that `init` names, if any, on every rank.

    Raises CheckpointError if they can't be read or do not fit, ConfigError without the package safetensors.
    """
    if init.run is None:
        return
    state, found, files = module.state_dict(), find_adapters(module), list_weight_files(init.run)
    base = stored_base(state)
    own = {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor) and name != base}
    elsewhere = {name for name, tensor in own.items() if tensor.is_meta}  # fsdp: rank 0 has it

    def read(saved: SavedCheckpoint) -> dict[str, Tensor]:
        refuse_other_framework(saved, "lightning")
        weights = read_checkpoint(saved.path, mmap=True, unread=elsewhere)[WEIGHTS]
        return {name: tensor for name, tensor in weights.items() if isinstance(tensor, Tensor)}

    stored = {} if files else read_chosen(open_run(init.run), init.checkpoint, read)
    if base := stored_base(stored):
        own_base = found[1].identity if found else None
        refuse_other_base(f"init.run={init.run}", read_base(stored.pop(base)), own_base)
        found = None  # its adapters are loaded, not its base
    if found:
        prefix, adapters = found
        own = {prefix + name: tensor for name, tensor in adapters.base_weights().items()}
    if files:
        stored = read_weight_files(files, shapes_of(own))
    taken = select_weights(shapes_of(own), shapes_of(stored), init, report)
    if found:
        adapters.set_base({name.removeprefix(prefix): stored[name] for name in taken})
    else:
        module.load_state_dict({name: stored[name] for name in taken if name not in elsewhere}, strict=False)


def read_weight_files(files: Sequence[Path], own: Shapes) -> dict[str, Tensor]:
    """Return the weights in files, by the names of a model with these shapes, else by their own.

    Raises CheckpointError for a file that can't be read or holds more than tensors and numbers, ConfigError without safetensors.
    """
    stored = {name: tensor for file in files for name, tensor in _read_tensors(file).items()}
    rename = choose_names(shapes_of(stored), own)
    return {rename(name): tensor for name, tensor in stored.items()}


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

    def rename(before: str, after: str, name: str) -> str:
        new = after + plain_name(name).removeprefix(before)
        return name if own.get(name) == stored[name] else plain.get(new, name)

    pairs = product(sorted(removed, key=len), sorted(added, key=len))
    candidates = [partial(rename, before, after) for before, after in pairs]
    return max(candidates, key=lambda one: sum(own.get(one(name)) == stored[name] for name in stored))


def _read_tensors(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        require("safetensors", f"init.run={file}")
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
    """Write tensors to a new file, and compare them. Raises CheckpointError, and ConfigError without the package safetensors."""
    require("safetensors", what)
    from safetensors import safe_open
    from safetensors.torch import save_file

    file.touch()  # with the permissions of other exports, which save_file would not give it
    mode = file.stat().st_mode
    save_file({n: t.clone().contiguous() for n, t in weights.items()}, file, metadata={"format": "pt"})
    file.chmod(mode)
    with safe_open(file, "pt") as written:
        refuse_other_weights(what, weights, written.get_tensor)


def refuse_other_weights(what: str, weights: Mapping[str, Any], read: Callable[[str], Tensor]) -> None:
    """Raise CheckpointError unless `read` returns each of the weights bit for bit, of any device; NaN equals NaN."""
    for name, tensor in weights.items():
        one, other = tensor.detach().cpu(), read(name)
        if not torch.equal(one, other) and not bool(((one == other) | (one != one) & (other != other)).all()):
            raise CheckpointError(
                f"{what}: {name} has other values in the written file, which was removed; is the disk full?."
            )


def require(package: str, what: str) -> None:
    """Raise ConfigError if a package is missing, which `what` needs."""
    if problem := package_problem(package, what):
        raise ConfigError(problem)


BASE = "lora_base"
"""Name in a state_dict of the hash and the name of the base, as bytes."""

INSIDE = ".base_layer"
"""The end that peft adds to the name of a layer with an adapter."""


class Adapters:
    """The adapters of a module.

    Attributes:
        left_out: names of the parameters that checkpoints do not hold: those of the base that were never trainable.
    """

    def __init__(self, module: nn.Module, lora: Lora, base: str) -> None:
        from peft import LoraConfig, LoraModel

        self.module, self.lora, self.base = module, lora, base
        names = [name for name, _ in module.named_modules()]
        train = select_layers(names, lora.train, "train")
        targets = select_layers(names, lora.targets or [], "targets")
        scale = {"r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout}
        self.options = LoraConfig(**scale, target_modules=sorted(targets) or None)
        with explain_target_errors("model.lora"):
            self.tuner = LoraModel(module, self.options, "default")
        for name in train:
            module.get_submodule(name).requires_grad_(True)
        named = module.named_parameters(remove_duplicate=False)  # a state_dict has tied weights twice
        self.left_out = {name for name, p in named if not p.requires_grad}
        self._frozen, self._whole, self._prefix = sorted(self.left_out), False, ""
        self._hooks = [
            module.register_state_dict_post_hook(partial(self._leave_out)),
            module.register_load_state_dict_pre_hook(self._check),
            module.register_load_state_dict_post_hook(self._complete),
        ]

    @cached_property
    def identity(self) -> tuple[str, str]:
        """The hash of the base, computed at the first use, and its name."""
        own = dict(self.module.named_parameters(remove_duplicate=False))
        bits = ((n, own[n].detach().cpu().reshape(-1).view(torch.uint8).numpy()) for n in self._frozen)
        return hash_weights(bits), self.base

    def base_weights(self) -> dict[str, Tensor]:
        """Return all weights but those of adapters, by the names that they have without adapters."""
        self._whole = True
        state = self.module.state_dict()
        self._whole = False
        return {n.replace(INSIDE, ""): t for n, t in state.items() if ".lora_" not in n}

    def set_base(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights, by the names of `base_weights`."""
        own = self.base_weights()
        for name, tensor in weights.items():
            own[name].copy_(tensor)
        vars(self).pop("identity", None)  # of the weights before

    def merge(self) -> None:
        """Add the adapters to the weights of the base and remove them."""
        for hook in self._hooks:
            hook.remove()
        self.tuner.merge_and_unload()

    def save(self, folder: Path) -> None:
        """Write the adapters in the format of peft. Raises ConfigError without safetensors."""
        modules, known = self.module.named_modules(), dict(self.module.named_parameters())
        part = next((name for name, one in modules if hasattr(one, "save_pretrained")), "")
        start = f"{part}." if part else ""
        weights = {
            "base_model.model." + re.sub(r"(\.lora_\w+)\.default\b", r"\1", name.removeprefix(start)): tensor
            for name, tensor in self.module.state_dict().items()
            if name in known
        }
        folder.mkdir()
        write_safetensors(weights, folder / "adapter_model.safetensors", "--export peft")
        targets: Any = self.options.target_modules
        self.options.target_modules = {name.removeprefix(start) for name in targets}
        self.options.modules_to_save = [name.rpartition(".")[2] for name in self.lora.train] or None
        self.options.save_pretrained(str(folder))

    def _leave_out(self, module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        if self._whole:
            return
        self.left_out -= {n for n, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
        for name in self.left_out:
            state.pop(prefix + name, None)
        state[prefix + BASE] = to_tensor("\n".join(self.identity).encode())

    def _check(
        self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any, strict: bool, *_: Any
    ) -> None:
        self._prefix = prefix
        if (saved := state.pop(prefix + BASE, None)) is not None:
            refuse_other_base("the checkpoint", read_base(saved), self.identity)
        self.left_out -= {name.removeprefix(prefix) for name in state}

    def _complete(self, module: nn.Module, incompatible: Any) -> None:
        base = {self._prefix + name for name in self.left_out}
        incompatible.missing_keys[:] = [name for name in incompatible.missing_keys if name not in base]


def read_base(saved: Tensor) -> list[str]:
    """Return the hash and the name of the base in a state_dict."""
    return bytes(saved.tolist()).decode(errors="replace").split("\n", 1)


def add_adapters(module: nn.Module, config: Config, whole: bool) -> Adapters | None:
    """Add adapters to the layers that `model.lora` names; `whole`: all of it. Raises ConfigError without such layers."""
    if config.model.lora is None:
        return None
    require("peft", "model.lora")
    if config.model.lora.targets is None and not hasattr(module, "config"):
        raise ConfigError(
            "model.lora.targets=null is for models of transformers only; name layers: model.lora.targets=[q_proj,v_proj]."
        )
    adapters = Adapters(module, config.model.lora, describe_base(config, whole))
    module.lora_adapters = adapters
    return adapters


def find_adapters(module: nn.Module) -> tuple[str, Adapters] | None:
    """Return the adapters in a module with the prefix of their names, or None."""
    found = ((name, getattr(one, "lora_adapters", None)) for name, one in module.named_modules())
    return next(((f"{n}." if n else "", a) for n, a in found if isinstance(a, Adapters)), None)


def stored_base(shapes: Mapping[str, Any]) -> str | None:
    """Return the name of the base's entry in a checkpoint with adapters only, or None."""
    return next((name for name in shapes if name == BASE or name.endswith(f".{BASE}")), None)
