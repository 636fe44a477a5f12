"""Which words of an evaluation's command line are overrides of its job."""

from train_anywhere.inference.evaluation_job import select_job_words


def test_a_repeated_override_counts_where_it_is_last() -> None:
    """As on any command line the last value wins, also if it was typed before."""
    words = ["cluster=slurm", "cluster.cpus=2", "data.stage=false", "cluster.cpus=4", "cluster.cpus=2"]
    assert select_job_words(words) == ["cluster=slurm", "cluster.cpus=2", "cluster.cpus=4", "cluster.cpus=2"]
    assert select_job_words(["cluster=local", "cluster=slurm", "cluster=local"]) == []
    assert select_job_words(["cluster=slurm", "cluster=local", "cluster=slurm"])[-1] == "cluster=slurm"
