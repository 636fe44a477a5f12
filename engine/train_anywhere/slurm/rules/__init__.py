"""What must hold before a job is submitted: every rule is checked, and all problems are listed together.

A rule takes a `Request` (the configuration and the job made of it) and yields one sentence for each problem: what is wrong,
why, what to type instead. Each module ends with a tuple of its rules, checked in this order:

    resources   what is requested, compared with what a node has        launch_rules     launch method and container
    site_limits what the site's scheduler accepts                       local_folders    folders of this machine
    options     `cluster.extra`, and line breaks in values              local_packages   packages of this Python

Features report theirs last: `train_anywhere.features`. Rules about folders and packages of this machine are left out of a dry run for
another machine. `advice` yields notes, which stop nothing.
"""

from train_anywhere import features
from train_anywhere.slurm.rules import (
    advice,
    launch_rules,
    local_folders,
    local_packages,
    options,
    resources,
    site_limits,
)
from train_anywhere.slurm.rules.rule_request import Request


def problems(request: Request, elsewhere: bool = False) -> list[str]:
    """Everything that would make the job fail or waste resources; empty if it can be submitted.

    Args:
        elsewhere: leave out the rules about this machine, because it does not belong to the site.
    """
    here = () if elsewhere else local_folders.RULES + local_packages.RULES
    rules = (*resources.RULES, *site_limits.RULES, *options.RULES, *launch_rules.RULES, *here)
    return [sentence for rule in rules for sentence in rule(request)] + of_features(request, elsewhere)


def of_features(request: Request, elsewhere: bool = False) -> list[str]:
    """What features report of the configuration and of the job."""
    c, members = request.config, len(request.job.members or (0,))
    return features.problems(
        c,
        lambda one: [
            *one.problems(),
            *one.problems_of_job(members),
            *([] if elsewhere else one.problems_at_submission()),
        ],
    )


def notes(request: Request) -> list[str]:
    """What a user should know and may ignore: advice for this request, then the site's own notes."""
    return [sentence for rule in advice.RULES for sentence in rule(request)] + list(request.site.notes)
