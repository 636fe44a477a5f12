"""Format the newest sample of a node (`features/sampler/sampler.py`) as a line."""

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

SHOWN = 8
"""Largest number of GPUs of a node that are listed one by one; of more, the mean is shown."""


def line(content: Mapping[str, Any]) -> str:
    """Return a line such as `GPU 0 91%, 34 of 80 GiB; GPU 1 ...; CPUs 45%`; empty if the file has no such values."""
    sample = content.get("sample")
    known = {k: float(v) for k, v in sample.items() if _is_number(v)} if isinstance(sample, dict) else {}
    gpus = [*_gpus(known, content)]
    parts = gpus if len(gpus) <= SHOWN else [_mean(known, len(gpus))]
    if "cpu_use_percent" in known:
        parts.append(f"CPUs {known['cpu_use_percent']:.0f}%")
    return "; ".join([*parts, *_old(known, content)])


def _gpus(sample: Mapping[str, float], content: Mapping[str, Any]) -> Iterator[str]:
    facts = content.get("gpus")
    known = [g for g in facts if isinstance(g, dict)] if isinstance(facts, list) else []
    sizes = {str(g.get("index")): g["memory_gib"] for g in known if _is_number(g.get("memory_gib"))}
    for name, use in sample.items():
        if gpu := re.fullmatch(r"gpu(\w+)_use_percent", name):
            used, size = sample.get(f"gpu{gpu[1]}_memory_used_gib"), sizes.get(gpu[1])
            memory = f", {used:.0f} of {size:.0f} GiB" if used is not None and size is not None else ""
            yield f"GPU {gpu[1]} {use:.0f}%{memory}"


def _mean(sample: Mapping[str, float], count: int) -> str:
    uses = [use for name, use in sample.items() if re.fullmatch(r"gpu\w+_use_percent", name)]
    return f"{count} GPUs {sum(uses) / count:.0f}% on average, {min(uses):.0f}% the least"


def _old(sample: Mapping[str, float], content: Mapping[str, Any]) -> list[str]:
    """Return the age of a sample that is overdue, else nothing."""
    every = content.get("every_seconds")
    age = content.get("age_seconds", time.time() - sample.get("time", 0.0))
    if not (_is_number(every) and _is_number(age) and every):
        return []
    return [f"{age:.0f} s ago"] if age > 3 * float(every) + 5 else []


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
