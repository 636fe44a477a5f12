"""Each rule refuses its example with a way out, and lets pass what is right."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.slurm.scripts import SCRATCH, Ask
from tools.testing.frameworks import FIRST
from train_anywhere import features
from train_anywhere.config.command.compose import compose, list_groups
from train_anywhere.config.keys import flatten
from train_anywhere.config.schema import Config
from train_anywhere.distributed.packages import PACKAGES
from train_anywhere.slurm import rules
from train_anywhere.slurm.rules import job_rules, local_rules, options
from train_anywhere.slurm.rules.job_rules import Request
from train_anywhere.slurm.script import render
from train_anywhere.slurm.script.render import OPTIONS, OWN_PBS
from train_anywhere.training.preflight import data_problems

MakeConfig = Callable[..., Config]

REFUSED = {
    "limits_of_a_node": ("cluster=narval trainer.devices=8 cluster.cpus_per_task=6", "use trainer.devices=4 trainer.nodes=2"),
    "limits_of_a_node: counts": ("cluster=trillium trainer.devices=3", "1 or 4 GPUs of a node; use trainer.devices=4"),
    "limits_of_a_node: CPUs": ("cluster=ibex strategy=horovod trainer.devices=8 cluster.cpus_per_task=6", "use cluster.cpus_per_task=5"),
    "limits_of_a_node: memory": ("cluster=ibex strategy=horovod trainer.devices=8 cluster.mem_per_gpu=90G", "cluster.mem_per_gpu=47G"),
    "batch_for_ranks: idle nodes": ("cluster=slurm trainer.nodes=3 trainer.total_devices=2", "use trainer.nodes=2"),
    "batch_for_ranks": ("cluster=slurm strategy=horovod trainer.devices=5 data.batch_size=64", "use data.batch_size=65"),
    "longest_job": ("cluster=neuron cluster.time=3-00:00:00", "use cluster.time=48:00:00"),
    "longest_job: of the partition": ("cluster=lumi cluster.partition=dev-g cluster.time=4:00:00", "use cluster.time=3:00:00"),
    "longest_job: no GPUs": ("cluster=clariden trainer.accelerator=cpu cluster.time=14:00:00", "use cluster.time=12:00:00"),
    "longest_job: of a QOS": ("cluster=leonardo cluster.qos=boost_qos_lprod cluster.time=5-00:00:00", "use cluster.time=96:00:00"),
    "limits_of_time": ("cluster=slurm cluster.time=2:00:00 cluster.time_min=3:00:00", "use cluster.time_min=1:00:00"),
    "limits_of_time: signal": ("cluster=slurm cluster.time=1 cluster.signal_seconds=60", "cluster.signal_seconds=30"),
    "limits_of_time: time_min": (
        "cluster=slurm cluster.time=9 cluster.time_min=1 cluster.signal_seconds=60", "cluster.signal_seconds=30"
    ),
    "most_gpus": ("cluster=neuron trainer.nodes=8 data.batch_size=64", "limit of 56"),
    "fair_share": ("cluster=slurm trainer.devices=2 cluster.time=5:00:00 cluster.max_gpu_hours=8", "2 GPUs x 5:00:00 may be 10 GPU hours"),
    "account": ("cluster=alvis", "use cluster.account=NAISS2026-22-123"),
    "comment": ("cluster=neuron", "field=nlp;appl=pytorch"),
    "requeue": ("cluster=trillium cluster.requeue=true", "cluster.chain=3"),
    "features: chain": ("cluster=slurm cluster.chain=2 name=sweep", "use cluster.chain=1"),
    "mail_type": ("cluster=slurm cluster.mail_type=SOMETIMES", "sbatch does not know SOMETIMES; use some of BEGIN,END"),
    "one_amount_of_memory": ("cluster=slurm cluster.mem=1G cluster.mem_per_gpu=1G", "set all but one of them to null"),
    "outline": ("cluster=pbs cluster.gpu_type=a100", "cluster.gpu_type=a100 would be ignored, because the outline pbs.sh.j2"),
    "outline: no option for GPUs": ("cluster=slurm cluster.gpu_request=none cluster.gpu_type=a", "no option requests GPUs; leave it out"),
    "outline: GPUs": ("cluster=pbs cluster.gpu_request=none", "cluster.gpu_request=none would be ignored, because the outline pbs"),
    "outline: a constraint": ("cluster=pbs cluster.constraint=[a,b]", "leave it out, use cluster.extra, or add it to that file"),
    "outline: a comment": ("cluster=pbs cluster.comment=a", "leave it out, use cluster.extra, or add it to that file"),
    "extra_options: nothing": ("cluster=slurm 'cluster.extra=[\"--\"]'", "is not an option"),
    "extra_options: comment": ("cluster=slurm 'cluster.extra=[\"--licenses=x#y\"]'", "has a # in it"),
    "extra_options: a quote": ("cluster=slurm 'cluster.extra=[\"--licenses=\\\"x\"]'", "quote"),
    "extra_options: wrap": ("cluster=slurm 'cluster.extra=[\"--wrap=id\"]'", "--wrap replaces the script"),
    "extra_options: wait": ("cluster=slurm 'cluster.extra=[-W]'", "use wait=true"),
    "extra_options: elsewhere": ("cluster=slurm 'cluster.extra=[\"-M other\"]'", "src/jobs.py does not query"),
    "extra_options: its environment": ("cluster=slurm 'cluster.extra=[\"-M other\"]'", "type `export SLURM_CLUSTERS=other` before"),
    "extra_options: signal": ("cluster=slurm 'cluster.extra=[\"--signal=B:USR1@60\"]'", "use cluster.signal_seconds=..."),
    "extra_options: no requeue": ("cluster=slurm 'cluster.extra=[\"--no-requeue\"]'", "use cluster.requeue=false."),
    "extra_options: tasks": ("cluster=slurm 'cluster.extra=[\"--tasks-per-node=2\"]'", "use trainer.devices=..."),
    "extra_options: a log": ("cluster=slurm 'cluster.extra=[\"-o x.out\"]'", "leave it out: the logs are in the run folder."),
    "extra_options: disk": ("cluster=slurm 'cluster.extra=[\"--gres=nvme:9\"]'", "use cluster.gres=..."),
    "extra_options: begin": ("cluster=slurm 'cluster.extra=[\"-b noon\"]'", "use cluster.begin=..."),
    "extra_options: pbs priority": ("cluster=pbs 'cluster.extra=[\"-p 5\"]'", "use cluster.nice=..."),
    "extra_options: array": ("cluster=slurm 'cluster.extra=[\"--arr=1-3\"]'", "use -m"),
    "extra_options: pbs": ("cluster=pbs 'cluster.extra=[\"-q gpu\"]'", "use cluster.partition=..."),
    "extra_options: pbs resources": ("cluster=pbs 'cluster.extra=[\"-l select=9\"]'", "-l select itself"),
    "longest_job: none": ("cluster=neuron cluster.time=0", "no limit at all"),
    "one_line": ("cluster=slurm 'cluster.account=\"a\\\n#SBATCH --uid=0\"'", "line break"),
    "launch": ("cluster=slurm launch=horovodrun trainer.devices=2 strategy=ddp", "use launch=srun|torchrun|mpirun"),
    "container: mounts": (
        "cluster=slurm container=apptainer container.image=docker://x container.mounts=[/a:b]",
        "nor of the form OUTSIDE:INSIDE",
    ),
    "comment: keras": ("cluster=neuron framework=keras", "\"cluster.comment='field=nlp;appl=tensorflow'\", or type once"),
    "comment: of another form": ("cluster=neuron framework=keras cluster.comment=etc", "'comment: \"field=nlp;appl=etc\"' >>"),
    "folders_of_site": ("cluster=neuron", "only from below /scratch/me"),
    "folders_of_site: results": (
        "cluster=sockeye cluster.site.submit_below=[] paths.results=/home/me/results", "use paths.results=/scratch/results"
    ),
    "folders_of_site: killed": ("cluster=ibex paths.results=/home/me/project/results", "kills jobs that run below /home"),
    "writable: a link": ("cluster=slurm paths.results=/proc/self/fd/none/x", "use paths.results=FOLDER"),
    "data: batch": ("cluster=slurm data.batch_size=5000", "data.batch_size=1259 or less"),
    "environment": ("cluster=slurm cluster.venv=/nope/env", "/nope/env is not an environment (it has no bin/activate)"),
    "writable": ("cluster=slurm paths.results=/etc/passwd/results", "use paths.results=FOLDER"),
}  # fmt: skip


WITHOUT_EXAMPLE = {"own_disk", "packages"}  # other tests have them
RULES = {r.__name__: r for m in (job_rules, options, local_rules) for r in m.RULES}
RULES = {name: r for name, r in RULES.items() if name not in WITHOUT_EXAMPLE} | {
    "features": lambda asked: features.problems(asked.config, "job", members=len(asked.job.members or [0]))
}


def test_each_rule_refuses_its_examples_and_names_the_way_out(ask: Ask) -> None:
    assert {name.split(":")[0] for name in REFUSED} == RULES.keys()
    wrong = {}
    for name, (line, way_out) in REFUSED.items():
        found = list(RULES[name.split(":")[0]](ask(line)))
        if len(found) != 1 or way_out not in found[0]:
            wrong[name] = found
    assert wrong == {}


def test_each_key_that_a_refused_option_names_exists() -> None:
    tree = flatten(compose(["cluster=slurm"]))
    keys = [o.text for o in OPTIONS.values() if o.kind in ("line", "part", "own")]
    named = {key.partition("=")[0] for key in [*keys, *OWN_PBS.values()]} - {"", "-m"}
    assert len(named) > 20 and sorted(named - {*tree}) == []


def test_the_qos_of_the_shell_has_its_own_limit(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "cluster=leonardo cluster.account=IscrC_x cluster.time=4-00:00:00"
    assert [*job_rules.longest_job(ask(line))] != []
    monkeypatch.setenv("SBATCH_QOS", "boost_qos_lprod")
    assert [*job_rules.longest_job(ask(line))] == []


def test_keys_that_the_outline_of_an_older_project_ignores(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused until a project's outline, or a file that it includes, uses them."""
    asked = ask("cluster=slurm cluster.time=9 cluster.time_min=5 cluster.nodelist=n1")
    assert [*options.outline(asked)] == []
    text = (render.TEMPLATES / "slurm.sh.j2").read_text()
    older = tmp_path / "slurm.sh.j2"
    older.write_text(text.replace("c.time_min", "false").replace("in lines", "in []"))
    monkeypatch.setattr(render, "TEMPLATES", tmp_path)
    second, first = sorted(options.outline(asked))
    assert first.startswith("cluster.time_min=5 would be ignored") and "cluster.extra" not in first
    assert second.startswith("cluster.nodelist=n1 would be ignored")
    older.write_text(older.read_text() + '{% include "ours.sh.j2" %}')
    (tmp_path / "ours.sh.j2").write_text("#SBATCH -w {{ c.nodelist }} {{ c.time_min }}\n")
    assert [*options.outline(asked)] == []
    older.write_text("")
    assert "without a version" in "".join(rules.problems(asked))


HOROVOD = "cluster=slurm trainer.devices=2 strategy=horovod"


@pytest.mark.parametrize(
    ("built", "line", "way_out"),
    [
        (None, HOROVOD, "run `make horovod` (builds once, some minutes). Without Horovod: strategy=ddp|fsdp"),
        (None, f"{HOROVOD} framework=keras", "strategy=multiworker_mirrored launch=auto"),
        (None, "cluster=slurm trainer.devices=1 launch=horovodrun", "run `make horovod`"),
        ("torch2.13.0", f"{HOROVOD} launch=mpirun", "built without MPI"),
        ("tf2.21.0.openmpi4.1.4", HOROVOD, "was built without torch"),
        ("torch2.13.0", f"{HOROVOD} framework=keras", "was built without tensorflow"),
        ("torch2.13.0", HOROVOD, None),
        ("torch2.13.0.openmpi4.1.4", f"{HOROVOD} launch=mpirun", None),
        (None, "cluster=slurm trainer.devices=2 strategy=ddp", None),
        (None, f"{HOROVOD} container=apptainer container.image=docker://x", None),
        (None, f"{HOROVOD} cluster.conda=base", None),
        (None, f"{HOROVOD} cluster.venv=$SLURM_TMPDIR/venv", None),
        (None, f"{HOROVOD} cluster.modules=[Horovod]", None),
        (None, f"{HOROVOD} 'cluster.setup=[source env.sh]'", None),
    ],
)
@pytest.mark.quick(
    "torch2.13.0-cluster=slurm trainer.devices=2 strategy=horovod-None",
    "torch2.13.0.openmpi4.1.4-cluster=slurm trainer.devices=2 strategy=horovod launch=mpirun-None",
)
def test_horovod_must_be_there_unless_the_ranks_have_another_python(
    ask: Ask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    built: str | None,
    line: str,
    way_out: str | None,
) -> None:
    asked = ask(line)
    packages(tmp_path, built)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    found = rules.problems(asked)
    assert len(found) == (way_out is not None), found
    assert way_out is None or way_out in found[0]
    assert rules.problems(asked, elsewhere=True) == []


def test_a_framework_that_is_not_installed_is_refused(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGES, FIRST, ("zzq_none",))
    [problem] = rules.problems(ask("cluster=slurm"))
    assert f"run `make setup FRAMEWORK={FIRST}`" in problem
    assert rules.problems(ask("cluster=slurm cluster.conda=base")) == []


def packages(folder: Path, built: str | None) -> None:
    """Write an import path with both frameworks and a Horovod `built` for one, or without it."""
    versions = {"torch": "2.13.0", "tensorflow": "2.21.0"} | ({"horovod": f"0.28.1+{built}"} if built else {})
    for name, version in versions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for package in ("horovod", *(name for names in PACKAGES.values() for name in names)):
        (folder / package).mkdir()
    noted = {"pytorch": "2.13.0"} if "torch" in (built or "") else {"tensorflow": "2.21.0"}
    (folder / "horovod/metadata.json").write_text(json.dumps(noted))


FINE = [
    "cluster=slurm", "cluster=slurm cluster.conda=base", "cluster=slurm cluster.venv=$SLURM_TMPDIR/env",
    "cluster=slurm cluster.venv=/nope/env 'cluster.setup=[make the environment]'",
    "cluster=slurm cluster.local_disk=/nvme cluster.venv=/nvme/env",
    "cluster=slurm cluster.local_disk=/nvme data=imagefolder data.dir=/nvme/pictures",
    "cluster=slurm data=imagefolder data.dir=$SLURM_TMPDIR/pictures",
    "cluster=slurm container=apptainer container.image=docker://x container.mounts=[/a:/in] data=imagefolder data.dir=/in/x",
    "cluster=slurm cluster.mem=0 cluster.time=0", 'cluster=slurm \'cluster.extra=["--licenses=x","--spread-job","--gres-flags=x"]\'',
    "cluster=slurm cluster.nodelist=n1,n2 cluster.time=60 cluster.time_min=30 cluster.gres=nvme:9", "cluster=pbs trainer.nodes=2",
    "cluster=neuron trainer.nodes=4 cluster.comment='\"field=nlp;appl=pytorch\"'",
    "cluster=sockeye_pbs cluster.account=st-pi-1-gpu paths.results=/scratch/x", "cluster=nibi cluster.account=def-pi",
    "cluster=trillium trainer.devices=4 cluster.partition=debug cluster.mem=10G cluster.chain=3 paths.results=/scratch/me/x",
    "cluster=ibex cluster.gpu_type=null cluster.constraint=v100 trainer.devices=4", "cluster=rorqual cluster.account=def-pi",
    "cluster=narval cluster.account=ctb-pi trainer.accelerator=cpu trainer.devices=64 strategy=ddp data.batch_size=64 cluster.mem=600G",
    "cluster=leonardo cluster.account=IscrC_x cluster.qos=boost_qos_lprod cluster.time=4-00:00:00",
    "cluster=clariden", "cluster=clariden cluster.partition=low cluster.time=20:00:00",
    "cluster=clariden cluster.partition=other trainer.accelerator=cpu cluster.time=14:00:00",
]  # fmt: skip
"""Requests of which headers.tsv has no example."""


@pytest.mark.slow
def test_what_is_right_passes(ask: Ask) -> None:
    wrong = {}
    for line in FINE:
        right = ask(line, folder="/scratch/me/project")
        rules = [rule for name, rule in RULES.items() if name != "writable" or "/scratch" not in line]
        if found := [p for rule in rules for p in rule(right)]:
            wrong[line] = found
    assert wrong == {}


def test_all_problems_in_one_list(ask: Ask) -> None:
    found = rules.problems(ask("cluster=trillium trainer.devices=3 cluster.time=48:00:00 cluster.mem=1T"))
    assert len(found) >= 4
    assert rules.problems(ask("cluster=trillium trainer.devices=3"), elsewhere=True) != []


def test_an_account_of_the_environment_counts(ask: Ask) -> None:
    asked = ask("cluster=narval")
    by_profile = Request(
        asked.config, asked.job, data_problems, asked.folder, {**SCRATCH, "SBATCH_ACCOUNT": "def-pi"}
    )
    assert list(job_rules.account(asked)) != []
    assert list(job_rules.account(by_profile)) == []


def test_no_preset_refuses_a_gpu_type(ask: Ask) -> None:
    """The outline for PBS uses none."""
    refused = {}
    for site in {*list_groups()["cluster"]} - {"local", "current", "pbs", "sockeye_pbs"}:
        asked = ask(f"cluster={site} cluster.gpu_type=zzq_1g.5gb")
        if found := [p for p in rules.problems(asked, elsewhere=True) if "zzq" in p]:
            refused[site] = found
    assert refused == {}


def test_a_fact_of_a_preset_without_a_source_says_so(ask: Ask) -> None:
    [problem] = rules.problems(ask("cluster=slurm cluster.site.max_gpus=1 trainer.devices=2 strategy=ddp"))
    assert "Source: cluster.site of the preset slurm, which names no source; cluster.check=warn" in problem


def test_each_preset_with_facts_names_their_source(make_config: MakeConfig) -> None:
    sites = {name: make_config(f"cluster={name}").cluster.site for name in list_groups()["cluster"]}
    silent = [
        n for n, s in sites.items() if (s.nodes or s.account or s.max_time) and not (s.source and s.checked)
    ]
    assert silent == []
