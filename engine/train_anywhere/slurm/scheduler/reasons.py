"""The reasons for which a job waits, in words: https://slurm.schedmd.com/job_reason_codes.html."""

import re

REASONS = (
    ("Priority", "jobs with a higher priority are before it"),
    ("Resources", "not enough nodes are free yet; fewer nodes or a shorter cluster.time start earlier"),
    ("BeginTime", "it may not start before begin=, or Slurm waits a moment after a requeue"),
    ("DependencyNeverSatisfied", "the job that it waits for has failed, so it never starts: cancel it"),
    ("Dependency", "it starts when another job ends"),
    ("JobHeldUser", "you hold it: scontrol release JOBID"),
    ("JobHeldAdmin", "an administrator holds it: ask your site"),
    (
        "ReqNodeNotAvail",
        "nodes are down, drained or reserved; a shorter cluster.time may end before a maintenance",
    ),
    ("PartitionTimeLimit", "cluster.time is over the limit of the partition, so it never starts: cancel it"),
    ("PartitionNodeLimit", "trainer.nodes is over the limit of the partition, so it never starts: cancel it"),
    ("PartitionDown|PartitionInactive", "the partition starts no jobs now"),
    ("BadConstraints", "no node has what it requests, so it never starts: cancel it"),
    ("NodeDown", "a node that it needs is down"),
    (
        "QOSMax.*PerUser.*|QOSMaxJobs.*|MaxJobsPerAccount",
        "you run as much as the QOS allows; it starts when a job of yours ends",
    ),
    (
        "QOSMax.*PerJob.*|QOSMaxWall.*|QOSMax.*PerNode.*",
        "one job may not be that large in this QOS, so it never starts: cancel it",
    ),
    ("QOSGrp.*", "all users of this QOS together are at its limit"),
    (
        "AssocGrp.*Minutes.*|AssocMax.*Minutes.*",
        "the budget of your account has not enough hours left for cluster.time",
    ),
    (
        "AssocMax.*PerJob.*|AssocMaxWall.*",
        "one job of your account may not be that large, so it never starts: cancel it",
    ),
    ("AssocGrp.*|AssocMax.*", "your account runs as much as it may; it starts when jobs of the group end"),
    ("JobArrayTaskLimit", "cluster.max_running members of the sweep run already"),
    ("Cleaning", "it was requeued, and its nodes are being cleaned up"),
    ("Reservation.*", "its reservation has not begun, or has no free nodes"),
    ("Licenses", "all licenses that it needs are in use"),
    ("Invalid(Account|QOS)", "account or QOS are not valid any more, so it never starts: cancel it"),
)
"""Patterns of Slurm's reasons, the first that matches counts, each with its meaning."""


def in_words(reason: str) -> str:
    """Return the reason with its meaning: `Priority: jobs with a higher priority are before it`; else as it is."""
    code = re.split(r"[,( ]", reason.strip("()"), maxsplit=1)[0]
    words = next((words for pattern, words in REASONS if re.fullmatch(pattern, code)), "")
    return f"{reason.strip('()')}: {words}" if words else reason
