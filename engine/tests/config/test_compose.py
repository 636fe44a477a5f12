"""The groups of the configuration, and command-line arguments in Hydra's grammar."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tools.testing.processes import run_python
from train_anywhere.config.command.compose import BUNDLED, CONFIGS, compose, list_groups, quote_value
from train_anywhere.config.command.diagnose import diagnose
from train_anywhere.config.keys import flatten
from train_anywhere.config.load import load, to_tree
from train_anywhere.files import with_engine


def test_groups_are_the_folders() -> None:
    known = list_groups()
    assert {"data", "model", "optimizer", "schedule", "strategy", "cluster", "experiment"} <= set(known)
    assert known["strategy"] == sorted(p.stem for p in (CONFIGS / "strategy").iterdir())


KEYS = "account qos gpu_type gres constraint comment reservation mail_user begin mem"


def test_values_mean_what_the_shell_hands_over() -> None:
    values = [
        "field=nlp;appl=pytorch", "a b", "it's", 'say "hi"', "$(touch x) `id`", "back\\slash", "[open", "a,b c;", "größe", "日本",
    ]  # fmt: skip
    typed = dict(zip((f"cluster.{key}" for key in KEYS.split()), values, strict=True))
    composed = flatten(compose([quote_value(f"{key}={value}") for key, value in typed.items()]))
    assert {key: composed[key] for key in typed} == typed


@pytest.mark.parametrize(
    "note",
    [
        "a, b", "[draft] {x: 1}", "true", "5", 'it\'s "new"', "two\nlines", "🎉 مرحبا", "x" * 10_000, "a\\", "#1: 5 %",
        "${lr} of $HOME, ${oc.env:HOME}",
    ],
)  # fmt: skip
def test_a_note_is_any_text(note: str) -> None:
    config = load(compose([quote_value(f"note={note}")]))
    assert config.note == note and load(to_tree(config)).note == note


def test_a_note_may_be_quoted_or_null() -> None:
    assert compose([quote_value("note='a, b'")])["note"] == "a, b"
    assert compose([quote_value("note=null")])["note"] is None


def test_a_list_of_the_scheduler_is_no_sweep_and_minutes_stay_minutes() -> None:
    words = [
        quote_value(w) for w in ("cluster.reservation=a,b", "cluster.partition=c,d", "cluster.time=4320")
    ]
    cluster = compose(words)["cluster"]
    assert (cluster["reservation"], cluster["partition"], cluster["time"]) == ("a,b", "c,d", "4320")


def test_hydra_grammar_is_left_alone() -> None:
    arguments = ["seed=1,2,3", "model.hidden=[1,2]", "resume=null", "--cfg", "name=a-b.c", "+a.b=1"]
    assert [quote_value(argument) for argument in arguments] == arguments


CHOICES: dict[str, dict[str, Any]] = {
    "task": {"name": "mine", "_target_": "a.b"},
    "data": {"name": "mine", "_target_": "a.b", "batch_size": 32, "workers": 0, "stage": False},
    "model": {"name": "mine", "_target_": "a.b", "from_data": {}, "lora": None},
    "optimizer": {"name": "mine", "_target_": "a.b", "lr": 0.001, "scale_lr": "none", "no_decay": [], "groups": []},
    "schedule": {"name": "mine", "_target_": "a.b", "interval": "step"},
    "callbacks": {"mine": {"_target_": "a.b"}},
    "loggers": {"mine": {"_target_": "a.b"}},
}  # fmt: skip


@pytest.mark.parametrize("group", CHOICES)
def test_a_choice_needs_only_a_target(configs: Path, group: str) -> None:
    (configs / group / "mine.yaml").write_text("_target_: a.b\n")
    assert compose([f"{group}=mine"])[group] == CHOICES[group]


def test_a_new_process_completes_a_choice_too(configs: Path) -> None:
    """Hydra looks for its plugins, and makes their classes anew, once in each process."""
    (configs / "data" / "mine.yaml").write_text("_target_: a.b\n")
    look = f"c.CONFIGS = c.ROOT / {str(configs)!r}; print(c.compose(['data=mine'])['data']['name'])"
    code = f"import train_anywhere.config.command.compose as c; {look}"
    done = run_python("-c", code, env=with_engine())
    assert (done.stdout, done.returncode) == ("mine\n", 0), done.stderr


def test_what_a_choice_says_or_inherits_stays(configs: Path) -> None:
    (configs / "data" / "mine.yaml").write_text(
        "_target_: a.b\nbatch_size: 7\ndata_dir: ${paths.data_dir}/x\n"
    )
    (configs / "data" / "more.yaml").write_text("defaults: [mine]\n_target_: a.c\n")
    (configs / "callbacks" / "mine.yaml").write_text("_target_: a.b\n")
    tree = compose(["data=more", "callbacks=[mine,learning_rate]"])
    assert (tree["data"]["name"], tree["data"]["_target_"], tree["data"]["batch_size"]) == ("more", "a.c", 7)
    assert tree["data"]["data_dir"] == f"{tree['paths']['data']}/x"
    assert tree["paths"].keys() == {"results", "data"} and tree["name"] == "more"
    assert tree["callbacks"].keys() == {"mine", "learning_rate"}


def test_a_nested_key_may_be_named_like_a_group(configs: Path) -> None:
    target = "{_target_: torch.optim.Adam, _partial_: true, lr: 0.001}"
    (configs / "task" / "mine.yaml").write_text(f"_target_: builtins.dict\noptimizer: {target}\nmodel: 3\n")
    config = load(compose(["task=mine"]))
    assert config.task.arguments["optimizer"] == {
        "_target_": "torch.optim.Adam",
        "_partial_": True,
        "lr": 0.001,
    }
    assert diagnose(["task=mine", "seed=x"], ValueError()).problems == ["seed='x' is not a whole number."]


@pytest.mark.parametrize(
    "file, content, says",
    [
        ("data/mine.yaml", "dir: x\n", "{} has no target; write `_target_: package.name` into it."),
        ("model/mine.yaml", "_target_: torch.nn.Linear\nbias: true\nin_features: 3\n",
            "'model.out_features' is missing: torch.nn.Linear needs it ({} does not have it)."),
    ],
)  # fmt: skip
def test_a_missing_key_of_a_choice_names_the_file(configs: Path, file: str, content: str, says: str) -> None:
    (configs / file).write_text(content)
    words = [f"{file.partition('/')[0]}=mine"]
    with pytest.raises(Exception) as refused:
        load(compose(words))
    assert diagnose(words, refused.value).problems[0] == says.format(configs / file)


def test_bundled_presets_work_by_name_and_own_files_replace_them(configs: Path) -> None:
    shutil.rmtree(configs / "cluster")
    assert {"local", "slurm", "neuron", "lumi", "current"} <= {*list_groups()["cluster"]}
    assert compose(["cluster=neuron"])["cluster"]["partition"] == "amd_a100nv_8"
    (configs / "cluster").mkdir()
    (configs / "cluster/slurm.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /hydra/launcher: slurm\n"
        "cluster:\n  name: slurm\n  scheduler: slurm\n  qos: mine\nhydra:\n  mode: MULTIRUN\n"
    )
    tree = compose(["cluster=neuron"])["cluster"]  # the bundled preset is based on slurm
    assert (tree["partition"], tree["qos"]) == ("amd_a100nv_8", "mine")


def test_presets_of_the_template_are_copies_of_the_bundled_ones() -> None:
    files = [*(CONFIGS / "cluster").glob("*.yaml")]
    assert {file.name for file in files} >= {"local.yaml", "slurm.yaml", "neuron.yaml"}
    for file in files:
        assert file.read_bytes() == (BUNDLED / "cluster" / file.name).read_bytes(), file.name
