"""Rules that are checked before a job is submitted. All problems are reported together.

A rule takes a `Request` (the configuration and its job) and yields one message for each problem: what is wrong, why, what to
type instead. Each module ends with a tuple of its rules, checked in this order:

    resources   the request, compared with a node of the preset         launch_rules     launch method and container
    site_limits limits of the site's scheduler                          local_folders    folders of this machine
    options     outline, `cluster.extra`, line breaks in values         shared_folders   folders that all nodes must see
                                                                        local_packages   packages of this Python

A refusal by a fact about the site names the fact's source and date, and `cluster.check=warn` makes it a note: the site may have
changed. The problems of features come last (`train_anywhere.features`). A dry run for another machine skips the rules about folders and
packages of this machine. `advice` yields notes, which refuse nothing.
"""

from collections.abc import Callable, Iterator

from train_anywhere import features
from train_anywhere.slurm.rules import (
    advice,
    launch_rules,
    local_folders,
    local_packages,
    options,
    resources,
    shared_folders,
    site_limits,
)
from train_anywhere.slurm.rules.rule_request import Request

Rule = Callable[[Request], Iterator[str]]

OF_SITE = frozenset({*resources.SITE_RULES, *site_limits.SITE_RULES, *local_folders.SITE_RULES})
"""Rules that compare a job with facts about the site."""


def problems(request: Request, elsewhere: bool = False) -> list[str]:
    """Return all problems that would make the job fail or waste resources; empty if it can be submitted.

    With `elsewhere`, the rules about this machine are skipped, because it does not belong to the site.
    """
    warn = request.config.cluster.check == "warn"
    found = [
        _with_source(sentence, request, "; cluster.check=warn submits the job anyway")
        if rule in OF_SITE
        else sentence
        for rule in _rules(elsewhere)
        if not (warn and rule in OF_SITE)
        for sentence in rule(request)
    ]
    return found + feature_problems(request, elsewhere)


def _rules(elsewhere: bool) -> tuple[Rule, ...]:
    here: tuple[Rule, ...] = (
        () if elsewhere else local_folders.RULES + shared_folders.RULES + local_packages.RULES
    )
    if shared_folders.is_testbed():
        here = tuple(rule for rule in here if rule not in local_folders.SITE_RULES)
    return (*resources.RULES, *site_limits.RULES, *options.RULES, *launch_rules.RULES, *here)


def _with_source(sentence: str, request: Request, way_out: str = "") -> str:
    """Add the source and the date of the facts about the site."""
    site = request.site
    source = site.source or f"cluster.site of the preset {request.cluster}, which names no source"
    return f"{sentence} Source: {source}{f' ({site.checked})' if site.checked else ''}{way_out}."


def feature_problems(request: Request, elsewhere: bool = False) -> list[str]:
    """Return the problems that features report about the configuration and the job."""
    stages: tuple[features.Check, ...] = ("any", "job") if elsewhere else ("any", "job", "submission")
    return features.problems(request.config, *stages, members=len(request.job.members or (0,)))


def notes(request: Request, elsewhere: bool = False) -> list[str]:
    """Return notes that a user may ignore: refusals that `cluster.check=warn` turned off, advice, the notes of the preset."""
    warn = request.config.cluster.check == "warn"
    rules = [rule for rule in _rules(elsewhere) if warn and rule in OF_SITE]
    refused = [_with_source(sentence, request) for rule in rules for sentence in rule(request)]
    advising = (*advice.RULES, *(() if elsewhere else local_packages.NOTES))
    return refused + [sentence for rule in advising for sentence in rule(request)] + list(request.site.notes)
