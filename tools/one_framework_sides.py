"""What belongs to one framework: its words, and what stands for them where the other one is removed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Side:
    """One framework.

    Attributes:
        name: as `framework=` has it.
        prefixes: of its files beside its folders.
        strategies: those that it alone has.
        parts: words in the names of its functions and classes.
        words: pattern of what names it in a row or a line.
        instead: pattern and replacement, applied where the *other* side stays.
    """

    name: str
    prefixes: tuple[str, ...]
    strategies: tuple[str, ...]
    parts: frozenset[str]
    words: re.Pattern[str]
    instead: tuple[tuple[str, str], ...]

    def in_path(self, name: str) -> bool:
        """Whether a file is named after it: in a folder `keras`, or `tf_pipeline.py`, `test_tf_pipeline.py`, `keras-gpu.txt`."""
        path = Path(name)
        stem = path.stem.removeprefix("test_")
        if self.name in path.parts[:-1] or stem == self.name or stem.startswith(self.prefixes):
            return True
        return stem.endswith("-torchrun") and "torchrun" in self.parts

    def is_choice(self, text: str) -> bool:
        """Whether a choice of configs/ asks for it, or is for it alone."""
        if asks := re.search(r"^framework: (\w+)", text, re.MULTILINE):
            return asks[1] == self.name
        if asks := re.search(r"override /strategy: (\w+)|\Aname: (\w+)\n", text):
            return (asks[1] or asks[2]) in self.strategies
        return bool(re.search(rf"_target_: \{{{self.name}: [^,]*\}}", text))

    def names(self, identifier: str) -> bool:
        """Whether a function or class is named after it: `tf_config`, `FsdpStrategy`."""
        words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", identifier)
        return bool({word.lower() for word in words} & self.parts)


KERAS = Side(
    "keras",
    ("tf_", "tensorflow_", "keras-"),
    ("mirrored", "multiworker_mirrored"),
    frozenset({"keras", "tf", "tensorflow", "mirrored", "savedmodel"}),
    re.compile(r"keras|tensorflow|\btf[._]|\btf2|mirrored|savedmodel", re.IGNORECASE),
    instead=((r"(framework\"?: \"?)keras", r"\1lightning"),),
)
LIGHTNING = Side(
    "lightning",
    ("torch_", "torchrun-", "lightning-"),
    ("ddp", "dp", "fsdp"),
    frozenset({"lightning", "torch", "torchrun", "torchruns", "ddp", "fsdp", "dp", "pytorch"}),
    re.compile(
        r"lightning|torch|\bddp\b|\bfsdp\b|\bdp\b|\b(?-i:Lit[A-Z])|DataParallel|callbacks=learning_rat",
        re.IGNORECASE,
    ),
    instead=(
        (r"(framework\"?: \"?)lightning", r"\1keras"),
        (r"\bLitModule\b", "KerasModel"),
        (r"\bLitModul\b", "KerasMode"),
        (r"appl=pytorch", "appl=tensorflow"),
        (r"nvidia/pytorch:[\w.-]+", "nvidia/tensorflow:25.02-tf2-py3"),
        (r"launch: torchrun", "launch: srun"),
        (r"\btorchrun(, |\|)", ""),
        (r"strategy=ddp\b(?! does)", "strategy=multiworker_mirrored"),
        (r"\[\"torchrun\", \"", '["'),
    ),
)
SIDES = {side.name: side for side in (LIGHTNING, KERAS)}
