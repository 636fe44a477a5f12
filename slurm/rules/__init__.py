"""What must hold before a job is submitted: every rule is checked, and all problems are listed together.

A rule takes a `Request` and yields one sentence for each thing that is wrong: what, why, what to type instead.
"""

from slurm.rules import advice, folders, installed, limits, options, resources, starting
from slurm.rules.request import Request


def problems(request: Request, elsewhere: bool = False) -> list[str]:
    """Everything that would make the job fail or waste what it asks for; empty where it can be submitted.

    Args:
        elsewhere: leave out the rules about this machine, which is not the site's.
    """
    here = () if elsewhere else folders.RULES + installed.RULES
    rules = (*resources.RULES, *limits.RULES, *options.RULES, *starting.RULES, *here)
    return [sentence for rule in rules for sentence in rule(request)]


def notes(request: Request) -> list[str]:
    """What a user should know and may ignore."""
    return [sentence for rule in advice.RULES for sentence in rule(request)] + list(request.site.notes)
