"""Notes of a submission: what a preset does not list, is likely wrong, or was refused without cluster.check=warn."""

from pathlib import Path

import pytest

from engine.tests.slurm.scripts import Ask
from train_anywhere.slurm import rules
from train_anywhere.slurm.rules import job_rules


@pytest.mark.parametrize(
    ("torch", "words", "says"),
    [
        ("2.13.0+cpu", "", "torch 2.13.0+cpu is built for CPUs, and the job requests GPUs"),
        ("2.13.0+cpu", "framework=keras", "tensorflow-cpu 2.21.0 is built for CPUs"),
        ("2.13.0", "", None),
        ("2.13.0+cpu", "trainer.accelerator=cpu", None),
        ("2.13.0+cpu", "cluster.conda=base", None),
    ],
)
def test_packages_for_cpus_are_noted_if_the_job_requests_gpus(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, words: str, says: str | None
) -> None:
    asked = ask(f"cluster=slurm {words}")
    for name, version in {"torch": torch, "tensorflow-cpu": "2.21.0"}.items():
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    noted = "\n".join(rules.notes(asked))
    assert says in noted if says else "built for CPUs" not in noted
    assert "built for CPUs" not in "\n".join(rules.notes(asked, elsewhere=True))


UNLISTED = [
    ("narval", "gpu_type", "a100_1g.5gb", "a100"),
    ("fir", "gpu_type", "nvidia_h100_80gb_hbm3_1g.10gb", "h100"),
    ("nibi", "gpu_type", "h100_1g.10gb", "h100, mi300a"),
    ("rorqual", "gpu_type", "h100_2g.20gb", "h100"),
    ("ibex", "gpu_type", "rtx2080ti", "v100, a100"),
    ("ibex", "gpu_type", "gtx1080ti", "v100, a100"),
    ("technion", "gpu_type", "h200", "a100"),
    ("alvis", "gpu_type", "a100", "A100, A100fat, A40, V100, T4"),
    ("neuron", "partition", "koni", "amd_a100nv_8, amd_h200nv_8"),
    ("neuron", "partition", "amd_a100nv_8,koni", "amd_a100nv_8"),
]


@pytest.mark.parametrize(
    "more", ["", "trainer.devices=16", "strategy=horovod trainer.devices=4 cluster.cpus_per_task=64"]
)
@pytest.mark.quick("strategy=horovod trainer.devices=4 cluster.cpus_per_task=64")
def test_a_gpu_that_the_preset_does_not_list_is_left_to_the_scheduler(ask: Ask, more: str) -> None:
    wrong = []
    for site, key, name, listed in UNLISTED:
        asked = ask(f"cluster={site} cluster.{key}={name} {more} data.batch_size=64")
        found = [p for rule in job_rules.RULES for p in rule(asked)]
        refused = [p for p in found if "rejects jobs without" not in p]
        notes = [n for n in rules.notes(asked) if f"cluster.{key}=" in n]
        unknown = name.rpartition(",")[2]
        noted = (
            len(notes) == 1
            and f"{key}={unknown} is not" in notes[0]
            and f"{site}, which lists {listed}" in notes[0]
        )
        if refused or not noted or asked.job.mem is not None or sum(asked.job.devices) not in (1, 4, 16):
            wrong.append((site, name, refused, notes, asked.job.mem, asked.job.devices))
    assert wrong == []


NOTED = {
    "account_form": ("cluster=sockeye cluster.account=mine", "does not have the usual form of an account of sockeye, st-<alloc>-1-gpu"),
    "nodes_for_batch": (
        "cluster=slurm strategy=ddp trainer.nodes=2-4 data.batch_size=64",
        "data.batch_size=64 is shared evenly by 2, 4 of 2 to 4 nodes",
    ),
    "set_by_site": ("cluster=neuron cluster.mem=10G", "may ignore or reject cluster.mem."),
    "set_by_site: partition": ("cluster=narval cluster.partition=gpu", "cluster.partition=gpu is rarely needed"),
    "gpu_type: of the constraint": (
        "cluster=ibex cluster.constraint=a100",
        "cluster.constraint=a100 requests other GPUs than cluster.gpu_type=v100; use cluster.gpu_type=a100 or null.",
    ),
    "gpu_type": ("cluster=ibex cluster.gpu_type=null", "cluster.gpu_type=a100|v100 names one"),
    "node_type": ("cluster=fir cluster.gpu_type=h10", "which lists h100"),
    "node_type: special": ("cluster=alvis cluster.gpu_type=A40 trainer.nodes=2", "no InfiniBand"),
    "node_type: aarch64": ("cluster=neuron cluster.partition=gh200_1", "aarch64"),
    "downloads": ("cluster=rorqual data=mnist paths.data=/none data.download=true", "no internet"),
    "maybe_private": ("cluster=narval cluster.account=def-pi paths.results=/tmp/results", "(/tmp/results) is below /tmp"),
    "unchecked_targets": ("cluster=slurm data._target_=math.sqrt", "its arguments are checked when the ranks start"),
}  # fmt: skip


def test_notes(ask: Ask) -> None:
    assert {"unchecked_targets", *(r.__name__ for r in rules.ADVICE)} == {n.split(":")[0] for n in NOTED}
    noted = {name: rules.notes(ask(line)) for name, (line, _) in NOTED.items()}
    assert {name: found for name, found in noted.items() if NOTED[name][1] not in "\n".join(found)} == {}


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("cluster=alvis cluster.account=naiss2026-22-123", "usual form"),  # as Slurm stores it
        ("cluster=ibex cluster.constraint='[v100|a100]'", "requests other GPUs"),
    ],
)
def test_no_note_about_what_is_right(ask: Ask, line: str, part: str) -> None:
    assert [n for n in rules.notes(ask(line)) if part in n] == []


FORBIDDEN = {
    "nodes": "cluster=narval trainer.devices=8",
    "limit": "cluster=neuron cluster.time=3-00:00:00",
    "account": "cluster=fir",
    "comment": "cluster=neuron",
    "requeue": "cluster=trillium cluster.requeue=true",
    "folder": "cluster=trillium",
}


@pytest.mark.parametrize("line", FORBIDDEN.values(), ids=FORBIDDEN)
def test_a_refusal_by_a_fact_names_its_source_and_check_warn_makes_it_a_note(ask: Ask, line: str) -> None:
    asked = ask(line)
    refused = [p for p in rules.problems(asked) if "Source: " in p]
    assert refused
    for sentence in refused:
        assert (
            f"Source: {asked.site.source} (2026-11); cluster.check=warn submits the job anyway." in sentence
        )
    warned = ask(f"{line} cluster.check=warn")
    assert [p for p in rules.problems(warned) if "Source: " in p] == []
    facts = [sentence.partition(" Source: ")[0] for sentence in refused]
    assert [n.partition(" Source: ")[0] for n in rules.notes(warned)][: len(facts)] == facts
