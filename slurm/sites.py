"""What must hold before a job is submitted: all rules are asked, and every answer is shown at once."""

from slurm.rules import folders, options, resources, scheduler, starting
from slurm.rules import notes as notes_
from slurm.rules.case import Case


def problems(case: Case, elsewhere: bool = False) -> list[str]:
    """Everything that would make the job fail or waste what it asks for; empty where it can be submitted.

    Args:
        elsewhere: leave out the rules about folders: this machine is not the site's.
    """
    rules = resources.RULES + scheduler.RULES + options.RULES + starting.RULES
    return [sentence for rule in rules + (() if elsewhere else folders.RULES) for sentence in rule(case)]


def notes(case: Case) -> list[str]:
    """What a user should know and may ignore."""
    return [sentence for rule in notes_.RULES for sentence in rule(case)] + list(case.site.notes)
