from pathlib import Path

import pytest

from train_anywhere.errors import ConfigError
from train_anywhere.files.removal import print_once
from train_anywhere.slurm import presets
from train_anywhere.slurm.presets import read_host_patterns, resolve_current


@pytest.mark.parametrize(
    ("host", "preset"), [("narval3", "narval"), ("glogin01", "neuron"), ("alvis2.c3se", "alvis")]
)
def test_the_preset_of_a_login_node(host: str, preset: str) -> None:
    assert resolve_current(["cluster=current", "seed=1"], [host]) == [f"cluster={preset}", "seed=1"]


def test_no_two_presets_share_a_login_node() -> None:
    examples = [
        p.replace("*", "1").replace("?", "1") for wanted in read_host_patterns()[0].values() for p in wanted
    ]
    assert all(resolve_current(["cluster=current"], [host]) for host in examples)


BROKEN = {
    "a tab": (b"cluster:\n\tname: x\n", "a tab can't indent"),
    "empty": (b"", "contains nothing"),
    "a list": (b"- a\n", "contains a list"),
    "cluster is a word": (b"cluster: neuron\n", "cluster.site.hosts is not a list of strings"),
    "hosts is a word": (b"cluster: {site: {hosts: login}}\n", "cluster.site.hosts is not a list of strings"),
    "hosts are numbers": (b"cluster: {site: {hosts: [1]}}\n", "cluster.site.hosts is not a list of strings"),
    "no text": (b"\xff\xfe\x00", "is not UTF-8"),
    "an unknown tag": (b"cluster: !!python/object:os.system {}\n", "could not determine a constructor"),
    "a date": (b"cluster: 2024-99-99\n", "cluster.site.hosts is not a list of strings"),
    "deep": (b"[" * 400, "expected the node content"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_preset_is_passed_over_for_those_who_use_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    content, says = BROKEN[name]
    print_once.cache_clear()
    (tmp_path / "bad.yaml").write_bytes(content)
    (tmp_path / "good.yaml").write_text("cluster: {site: {hosts: [gate*]}}\n")
    monkeypatch.setattr(
        presets, "read_host_patterns", lambda: read_host_patterns(sorted(tmp_path.glob("*.yaml")))
    )
    for _ in range(2):
        assert resolve_current(["cluster=current"], ["gate1"]) == ["cluster=good"]
    noted = capsys.readouterr().err
    assert noted.count("note:") == 1
    assert noted.startswith("note: ignored a preset: ") and "bad.yaml" in noted and says in noted
    with pytest.raises(ConfigError, match=r"ignored a preset: .*bad\.yaml"):
        resolve_current(["cluster=current"], ["laptop"])
