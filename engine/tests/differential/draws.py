"""Counted random choices, and the reduction of a program to its different part."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

Spec = dict[str, Any]
"""A program as nested dicts and lists; an entry that is missing has the simplest value."""


class Draws(random.Random):
    """A random generator with choices for specs."""

    def maybe(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random() < probability

    def subset(self, names: Sequence[str], probability: float) -> list[str]:
        """Return each name with this probability, in their order."""
        return [name for name in names if self.maybe(probability)]


def shrink(spec: Spec, fails: Callable[[Spec], bool], tries: int = 150) -> Spec:
    """Return the spec without entries that `fails` does not need, after at most `tries` calls."""
    progress = True
    while progress and tries > 0:
        progress = False
        for smaller in smaller_specs(spec):
            tries -= 1
            if fails(smaller):
                spec, progress = smaller, True
                break
            if tries <= 0:
                break
    return spec


def smaller_specs(spec: Any) -> Iterator[Any]:
    """Yield copies with one entry less, large entries first."""
    entries = spec.items() if isinstance(spec, dict) else enumerate(spec) if isinstance(spec, list) else ()
    places = sorted(entries, key=lambda entry: -len(repr(entry[1])))
    if len(places) > 3:
        for half in (places[::2], places[1::2]):
            kept = [place for place, _ in places if place == "seed" or place not in [p for p, _ in half]]
            yield {p: spec[p] for p in kept} if isinstance(spec, dict) else [spec[p] for p in sorted(kept)]
    for place, _ in places:
        if place != "seed":
            smaller = deepcopy(spec)
            del smaller[place]
            yield smaller
    for place, value in places:
        for less in smaller_specs(value):
            smaller = deepcopy(spec)
            smaller[place] = less
            yield smaller


def count_names(spec: Any, counts: Counter[str]) -> None:
    """Count each key of a spec, and each value that is a string or a flag."""
    for key, value in spec.items() if isinstance(spec, dict) else enumerate(spec):
        name = key if isinstance(key, str) else ""
        counts[name] += bool(name)
        if isinstance(value, dict | list):
            count_names(value, counts)
        elif isinstance(value, str):
            counts[f"{name}={value}" if name else value] += 1
