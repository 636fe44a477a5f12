"""Turn a command line into one typed and checked configuration, without runs, ranks or frameworks.

command        flags and overrides, Hydra's composition, one message for all problems
load           read `${oc.env:NAME}`, convert a tree to `schema`, `cluster` and `choices`, with `strict` and `limits`
checks         contradictions between keys, targets, strategies, folders
open_groups    sections with a `_target_`: `signatures` reads its source, `instantiate` calls it in a rank
paths          folders as typed

The names in `__all__` are public: use them for the checks and signatures of your models and data sets.
"""

from train_anywhere.config.choices import Channels, HiddenLayers, Samples, Side, Width
from train_anywhere.config.limits import Probability, Range
from train_anywhere.config.paths import AbsoluteFolder, resolve_node_path, write_problem

__all__ = [
    "AbsoluteFolder",
    "Channels",
    "HiddenLayers",
    "Probability",
    "Range",
    "Samples",
    "Side",
    "Width",
    "resolve_node_path",
    "write_problem",
]
