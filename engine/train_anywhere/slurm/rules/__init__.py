"""Rules that are checked before a job is submitted. All problems are reported together.

A rule takes a `Request` (the configuration and its job) and yields one message for each problem: what is wrong, why, what to
type instead. Each module ends with a tuple of its rules, checked in this order:

    resources   the request, compared with a node of the preset         launch_rules     launch method and container
    site_limits limits of the site's scheduler                          local_folders    folders of this machine
    options     `cluster.extra`, and line breaks in values              local_packages   packages of this Python

The problems of features come last (`train_anywhere.features`). A dry run for another machine skips the rules about folders and
packages of this machine. `advice` yields notes, which refuse nothing.
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
    """Return all problems that would make the job fail or waste resources; empty if it can be submitted.

    With `elsewhere`, the rules about this machine are skipped, because it does not belong to the site.
    """
    here = () if elsewhere else local_folders.RULES + local_packages.RULES
    rules = (*resources.RULES, *site_limits.RULES, *options.RULES, *launch_rules.RULES, *here)
    return [sentence for rule in rules for sentence in rule(request)] + feature_problems(request, elsewhere)


def feature_problems(request: Request, elsewhere: bool = False) -> list[str]:
    """Return the problems that features report about the configuration and the job."""
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
    """Return notes that a user may ignore: advice for this request, then the notes of the site's preset."""
    return [sentence for rule in advice.RULES for sentence in rule(request)] + list(request.site.notes)
