from collections.abc import Callable
from typing import Any

import pytest

from train_anywhere.config.command.compose import compose
from train_anywhere.config.command.members import refuse_mixed_members
from train_anywhere.errors import ConfigError, SubmitError
from train_anywhere.testing.plugin import Command


@pytest.fixture(scope="module")
def tree() -> Callable[..., dict[str, Any]]:
    """`tree("slurm", wait=True)`: a member for that cluster."""
    composed = {name: compose([f"cluster={name}"]) for name in ("slurm", "alvis", "local", "current")}
    return lambda cluster="slurm", **keys: {**composed[cluster], **keys}


def test_a_sweep_goes_to_one_cluster(tree: Callable[..., dict[str, Any]]) -> None:
    for clusters in (("slurm", "local"), ("local", "slurm"), ("slurm", "alvis"), ("current", "local")):
        for submitted in (True, False):
            with pytest.raises(
                ConfigError, match=f"this one names {', '.join(clusters)}: give each a command"
            ):
                refuse_mixed_members([tree(c) for c in clusters], submitted)


def test_what_speaks_of_the_command_is_not_swept(tree: Callable[..., dict[str, Any]]) -> None:
    members = [tree(dry_run=True, wait=True), tree(dry_run=False, wait=False, resume="results/x")]
    with pytest.raises(ConfigError) as caught:
        refuse_mixed_members(members, submitted=True)
    assert [p.split(" ")[0] for p in caught.value.problems] == ["dry_run", "wait", "resume="]
    with pytest.raises(ConfigError, match="without -m"):
        refuse_mixed_members([tree("local", resume="results/x")], submitted=False)
    with pytest.raises(SubmitError, match="no members"):
        refuse_mixed_members([], submitted=True)


def test_members_that_differ_in_what_one_array_can_hold_pass(tree: Callable[..., dict[str, Any]]) -> None:
    refuse_mixed_members([tree(framework=f, name=f) for f in ("lightning", "keras")], submitted=True)
    refuse_mixed_members([tree("local", name=n) for n in "ab"], submitted=False)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-m", "cluster=choice(slurm)"], "cluster=slurm would train here instead of submitting to slurm"),
        (["cluster=slurm", "cluster.scheduler=none"], "cluster=slurm has no scheduler to submit to; to train here use cluster=local."),
        (["cluster=slurm", "hydra/launcher=here"], "leave hydra/launcher= out."),
    ],
)  # fmt: skip
def test_nothing_is_trained_on_the_login_node(
    train: Command, tmp_path: Any, words: list[str], sentence: str
) -> None:
    done = train(*words, f"paths.results={tmp_path / 'results'}")
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
