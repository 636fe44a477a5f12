"""A preset is compared with given facts of Slurm. `test_facts.py` uses a real one."""

from typing import Any

import pytest

from train_anywhere.slurm.site_facts import KEEP, Compared, Kind, SlurmFacts, compare

A100 = Kind("gpu", "a100", 4, (64, 64), 500000)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> SlurmFacts:
    """Return facts of a site with a default partition without GPUs, and a user in one account."""
    monkeypatch.setenv("PATH", "/nothere")
    facts = SlurmFacts()
    facts.kinds[A100] = 9
    facts.partitions = {"main": {"Default": "YES"}, "gpu": {"MaxTime": "1-00:00:00"}}
    facts.up = facts.usable = {"gpu"}
    facts.features = {"GPU_SKU:A100_SXM4", "ib"}
    facts.accounts = {"naiss2026-1-2": "normal"}
    facts.config = {"AccountingStorageEnforce": "limits"}
    return facts


def wrong(slurm: SlurmFacts, site: dict[str, Any] | None = None, **keys: Any) -> dict[str, Compared]:
    """Return what differs in a preset with these keys, by the last key of each fact."""
    cluster = {"partition": "gpu", "site": site or {}} | keys
    return {c.keys[-1]: c for c in compare(cluster, slurm) if not c.agrees}


@pytest.mark.parametrize(
    ("constraint", "missing"),
    [
        ("GPU_SKU:A100_SXM4", ""),
        ("[GPU_SKU:A100_SXM4*2&ib*4]", ""),
        (["GPU_SKU:A100_SXM4|ib"], ""),
        ("(ib&GPU_SKU:V100)|ib", "no GPU_SKU:V100"),
        (["huge", "ib"], "no huge"),
    ],
)
def test_a_feature_may_have_a_colon(slurm: SlurmFacts, constraint: str | list[str], missing: str) -> None:
    found = wrong(slurm, constraint=constraint)
    assert [c.slurm for c in found.values()] == ([missing] if missing else [])


def test_a_limit_of_0_gpus_is_one_of_jobs_without_any(slurm: SlurmFacts) -> None:
    slurm.qos = {"normal": ["", "gres/gpu=0", ""]}
    assert wrong(slurm, {"max_gpus": 12}) == {}
    slurm.qos = {"normal": ["", "gres/gpu=0", "gres/gpu=8"]}
    assert wrong(slurm, {"max_gpus": 12})["max_gpus"].value == 8


def test_slurm_stores_accounts_in_lower_case(slurm: SlurmFacts) -> None:
    assert wrong(slurm, {"account": r"NAISS\d+-\d+-\d+"}) == {}
    assert "account" in wrong(slurm, {"account": r"def-.+"})


def test_no_partition_is_inserted_where_a_constraint_or_qos_may_select_one(slurm: SlurmFacts) -> None:
    assert wrong(slurm, partition=None)["partition"].value == "gpu"
    for keys in ({"constraint": "ib"}, {"qos": "regular"}):
        assert wrong(slurm, partition=None, **keys)["partition"].value is KEEP


def test_partitions_of_other_users_count_only_if_the_preset_has_them(slurm: SlurmFacts) -> None:
    lab = A100._replace(partition="lab", gpus=8)
    slurm.kinds[lab] = 99
    slurm.partitions["lab"] = {"MaxTime": "UNLIMITED"}
    slurm.up = {"gpu", "lab"}
    assert wrong(slurm, partition=None)["partition"].value == "gpu"
    nodes = [{"partition": "lab", "gpus": 8, "cpus": 64}]
    assert wrong(slurm, {"nodes": nodes}) == {}
    assert wrong(slurm, {"max_time": "1-00:00:00"}) == {}
