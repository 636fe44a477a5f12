"""LoRA for torch by peft: adapters in the layers of a module, and checkpoints without the frozen base.

Hooks of the module leave the base out of its `state_dict`, and put in its name and hash, which they compare when one is loaded. So
everything that saves or restores the module, such as Lightning, works on adapters and heads.
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from train_anywhere.config.choices import Lora
from train_anywhere.config.instantiate import explain_target_errors
from train_anywhere.config.schema import Config
from train_anywhere.distributed.packages import package_problem
from train_anywhere.errors import ConfigError
from train_anywhere.training.adapters import describe_base, hash_weights, refuse_other_base, select_layers
from train_anywhere.training.lightning.weight_files import write_safetensors

BASE = "lora_base"
"""Name in a state_dict of the hash and the name of the base, as bytes."""

INSIDE = ".base_layer"
"""The end that peft adds to the name of a layer with an adapter."""


class Adapters:
    """The adapters of a module.

    Args:
        module: the module, whose layers get adapters.
        lora: their configuration.
        base: the name of the base.

    Attributes:
        left_out: names of the parameters that checkpoints do not hold: those of the base that were never trainable.
    """

    def __init__(self, module: nn.Module, lora: Lora, base: str) -> None:
        from peft import LoraConfig, LoraModel

        self.module, self.lora, self.base = module, lora, base
        train = select_layers((name for name, _ in module.named_modules()), lora.train, "train")
        targets = select_layers((name for name, _ in module.named_modules()), lora.targets or [], "targets")
        self.options = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=sorted(targets) or None,
        )
        with explain_target_errors("model.lora"):
            self.tuner = LoraModel(module, self.options, "default")
        for name in train:
            module.get_submodule(name).requires_grad_(True)
        named = module.named_parameters(remove_duplicate=False)  # a state_dict has tied weights twice
        self.left_out = {name for name, p in named if not p.requires_grad}
        self._frozen, self._hash, self._whole, self._prefix = sorted(self.left_out), "", False, ""
        self._hooks = [
            module.register_state_dict_post_hook(partial(self._leave_out)),
            module.register_load_state_dict_pre_hook(self._check),
            module.register_load_state_dict_post_hook(self._complete),
        ]

    @property
    def identity(self) -> tuple[str, str]:
        """The hash of the base, computed at the first use, and its name."""
        if not self._hash:
            own = dict(self.module.named_parameters(remove_duplicate=False))
            bits = ((n, own[n].detach().cpu().reshape(-1).view(torch.uint8).numpy()) for n in self._frozen)
            self._hash = hash_weights(bits)
        return self._hash, self.base

    def base_weights(self) -> dict[str, Tensor]:
        """Return all weights but those of adapters, by the names that they have without adapters."""
        self._whole = True
        state = self.module.state_dict()
        self._whole = False
        return {n.replace(INSIDE, ""): t for n, t in state.items() if ".lora_" not in n}

    def set_base(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights, by the names of `base_weights`."""
        own, self._hash = self.base_weights(), ""
        for name, tensor in weights.items():
            own[name].copy_(tensor)

    def merge(self) -> None:
        """Add the adapters to the weights of the base and remove them; the module is then an ordinary one."""
        for hook in self._hooks:
            hook.remove()
        self.tuner.merge_and_unload()

    def save(self, folder: Path) -> None:
        """Write the adapters in the format of peft, for the part of the module that has `save_pretrained`, else for all of it.

        Raises:
            ConfigError: the package safetensors is missing.
        """
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
        state[prefix + BASE] = torch.frombuffer(
            bytearray("\n".join(self.identity).encode()), dtype=torch.uint8
        )

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
    """Add adapters to the layers that `model.lora` names, if it is set; `whole`: the module is the user's LightningModule.

    Raises:
        ConfigError: peft is missing, or the module has no such layers.
    """
    if config.model.lora is None:
        return None
    if problem := package_problem("peft", "model.lora"):
        raise ConfigError(problem)
    if config.model.lora.targets is None and not hasattr(module, "config"):
        raise ConfigError(
            "model.lora.targets=null is for models of transformers only; name layers: model.lora.targets=[q_proj,v_proj]."
        )
    adapters = Adapters(module, config.model.lora, describe_base(config, whole))
    module._adapters = adapters  # type: ignore[assignment]
    return adapters


def find_adapters(module: nn.Module) -> tuple[str, Adapters] | None:
    """Return the adapters in a module, with the prefix of the names of their weights; None if it has none."""
    found = ((name, getattr(one, "_adapters", None)) for name, one in module.named_modules())
    return next(((f"{n}." if n else "", a) for n, a in found if isinstance(a, Adapters)), None)


def stored_base(shapes: Mapping[str, Any]) -> str | None:
    """Return the name of the entry with the base in a checkpoint with adapters only; None in others."""
    return next((name for name in shapes if name == BASE or name.endswith(f".{BASE}")), None)
