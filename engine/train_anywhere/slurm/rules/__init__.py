"""What must hold before a job is submitted: every rule is checked, and all problems are listed together.

A rule takes a `Request` (the configuration and the job made of it) and yields one sentence for each problem: what is wrong,
why, what to type instead. Each module ends with a tuple of its rules, checked in this order:

    resources   what is requested, compared with what a node has        starting    launch method and container
    limits      what the site's scheduler accepts                       folders     folders of this machine
    options     `cluster.extra`, and line breaks in values              installed   packages of this Python

The last two are left out of a dry run on another machine. `advice` yields notes, which stop nothing.
"""

from train_anywhere.slurm.rules import advice, folders, installed, limits, options, resources, starting
from train_anywhere.slurm.rules.request import Request


def problems(request: Request, elsewhere: bool = False) -> list[str]:
    """Everything that would make the job fail or waste resources; empty if it can be submitted.

    Args:
        elsewhere: leave out the rules about this machine, because it does not belong to the site.
    """
    here = () if elsewhere else folders.RULES + installed.RULES
    rules = (*resources.RULES, *limits.RULES, *options.RULES, *starting.RULES, *here)
    return [sentence for rule in rules for sentence in rule(request)]


def notes(request: Request) -> list[str]:
    """What a user should know and may ignore: advice for this request, then the site's own notes."""
    return [sentence for rule in advice.RULES for sentence in rule(request)] + list(request.site.notes)
