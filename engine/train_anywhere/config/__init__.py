"""From the words of a command line to one typed, checked configuration.

In order: `command_line` separates flags from overrides; `compose` hands the overrides to Hydra, which merges configs/;
`environment_values` turns the result into plain dicts and lists, and reads `${oc.env:NAME}`; `load` makes it
dataclasses (`schema`, `choices`, `cluster`) by way of `strict`, which checks types and the rules of `limits` and `paths`;
`targets` checks what the sections of the open groups (`open`) name, `monitors` says which metric is the best one;
`checks` lists the contradictions between keys (`strategies`: what works with what, `batch_norm`: who normalises over all ranks);
`members` loads all runs of a sweep.
A request that fails is one message: `refusal` asks `sentences` what an exception means, and `diagnose` what else is wrong
with the command line; `yaml_files` knows what can be wrong with a file of configs/, `folders` whether one can be written to,
`signatures` what a class or function takes that a configuration names. `explained` is the page of `--help`. A rank makes what
is named with `instantiate`.
Nothing here knows of runs, ranks or frameworks, and nothing is imported that a submission would wait for.

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
