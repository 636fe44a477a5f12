"""LoRA for both frameworks: checkpoints hold the adapters, and name the base by its hash."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from train_anywhere.config.schema import Config
from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.files.terminal.printable import printable

MAX_NAME = 200
"""Maximum length of the name of a base."""


def describe_base(config: Config, whole: bool) -> str:
    """Return the name of the base in messages; `whole`: the task has the network."""
    section = config.task if whole else config.model
    arguments = ", ".join(f"{key}={value}" for key, value in section.arguments.items())
    init = f" init={config.init.run}" if config.init.run else ""
    return printable(f"{section.target[config.framework]}({arguments}){init}")[:MAX_NAME]


def hash_weights(weights: Iterable[tuple[str, Any]]) -> str:
    """Return the SHA-256 in hexadecimal of names and bytes, which are arrays of uint8 [n]."""
    digest = hashlib.sha256()
    for name, array in weights:
        digest.update(f"{name} {len(array)}\n".encode())
        digest.update(array)
    return digest.hexdigest()


def select_layers(names: Iterable[str], selected: Sequence[str], key: str) -> set[str]:
    """Return the names that are or end with one of `selected`. Raises ConfigError for no match."""
    known = [*names]
    found = set[str]()
    for one in selected:
        matching = {name for name in known if name == one or re.search(rf"[./]{re.escape(one)}$", name)}
        if not matching:
            ends = dict.fromkeys(re.split("[./]", name)[-1] for name in known if name)
            raise ConfigError(f"model.lora.{key}: the model has no layer {one}{did_you_mean(one, ends)}")
        found |= matching
    return found


def refuse_other_base(where: str, saved: Sequence[str], own: Sequence[str] | None) -> None:
    """Raise CheckpointError unless both bases, each a hash and a name, are the same; `own` is None for a model without adapters."""
    _, init, run = where.partition("init.run=")
    if own is None:
        raise CheckpointError(
            f"{where} holds only adapters of {saved[1]}; use the same model.lora, or write whole weights with `python src/evaluate.py "
            f"{run} --export safetensors` and start with init=FILE."
        )
    if saved[0] != own[0]:
        export = f" Or write whole weights with `python src/evaluate.py {run} --export safetensors` and start with init=FILE."
        raise CheckpointError(
            f"{where} holds adapters of {saved[1]} with sha256 {saved[0][:12]}, and the base here, {own[1]}, has {own[0][:12]}: adapters "
            f"fit only the weights that they were trained on. Use the same weights: the same model, seed and init.{export if init else ''}"
        )
