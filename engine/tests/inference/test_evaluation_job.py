"""Which words of an evaluation's command line are overrides of its job."""

from argparse import Namespace
from collections.abc import Callable

from train_anywhere.config.schema import Config
from train_anywhere.inference.request import EvaluationRequest, make_job_config, select_job_words
from train_anywhere.runs.folder import RunDir


def test_a_repeated_override_counts_where_it_is_last() -> None:
    """As on any command line the last value wins, also if it was typed before."""
    words = ["cluster=slurm", "cluster.cpus=2", "data.stage=false", "cluster.cpus=4", "cluster.cpus=2"]
    assert select_job_words(words) == ["cluster=slurm", "cluster.cpus=2", "cluster.cpus=4", "cluster.cpus=2"]
    assert select_job_words(["cluster=local", "cluster=slurm", "cluster=local"]) == []
    assert select_job_words(["cluster=slurm", "cluster=local", "cluster=slurm"])[-1] == "cluster=slurm"


def test_values_need_no_quotes(make_run: Callable[..., tuple[Config, RunDir]]) -> None:
    config, run = make_run()
    request = EvaluationRequest(run, config, [], None, None, None, [], None, Namespace())
    job = make_job_config(
        request, ["cluster=slurm", "cluster.partition=a,b", "cluster.comment=field=nlp;(x)"]
    )
    assert (job.cluster.partition, job.cluster.comment) == ("a,b", "field=nlp;(x)")
