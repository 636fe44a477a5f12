"""From a command line to one typed, checked configuration. Nothing here knows of runs, ranks or frameworks.

command               flags and overrides, what Hydra composes, one message for all problems
load                  a tree into dataclasses: `schema`, `cluster`, `choices`, by way of `strict` and `limits`
checks                contradictions between keys, targets, strategies, folders
open_groups           sections that name anything by `_target_`; `instantiate` makes it in a rank, `signatures` reads it without importing
paths                 folders as typed; `environment_values` reads `${oc.env:NAME}`

Public, for checks and signatures of a project's own models and data sets: what `__all__` lists.
"""

from train_anywhere.config.checks.writable import unwritable
from train_anywhere.config.choices import Channels, HiddenLayers, Samples, Side, Width
from train_anywhere.config.limits import Probability, Range
from train_anywhere.config.paths import AbsoluteFolder, here

__all__ = [
    "AbsoluteFolder",
    "Channels",
    "HiddenLayers",
    "Probability",
    "Range",
    "Samples",
    "Side",
    "Width",
    "here",
    "unwritable",
]
