from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from train_anywhere.commands import new_cluster
from train_anywhere.commands.new_cluster import Row, make_preset, parse_rows
from train_anywhere.errors import SubmitError
from train_anywhere.slurm.testbed.testbed_cluster import Testbed

SINFO = """\
cpu|(null)|64|256000|2-00:00:00|100
gpu|gpu:a100:4(S:0-1)|128|515000+|3-00:00:00|20
gpu|gpu:v100:2,tmpdisk:800|40|190000|3-00:00:00|5
old|gpu:8|20+|128000|infinite|1
"""


def test_rows_of_nodes_with_gpus() -> None:
    assert parse_rows(SINFO) == [
        Row("gpu", "a100", 4, 128, 515000, "3-00:00:00", 20),
        Row("gpu", "v100", 2, 40, 190000, "3-00:00:00", 5),
        Row("old", None, 8, 20, 128000, "infinite", 1),
    ]


def test_the_preset_is_read_back() -> None:
    tree = yaml.safe_load(make_preset("mine", parse_rows(SINFO), None, "login03.example.org"))
    assert tree["cluster"]["partition"] == "gpu"
    assert tree["cluster"]["gpu_type"] == "a100"
    assert tree["cluster"]["site"]["hosts"] == ["login*"]
    assert tree["cluster"]["site"]["max_time"] == "3-00:00:00"  # quoted: not a number
    assert tree["cluster"]["site"]["nodes"][0] == {
        "partition": "gpu",
        "gpu_type": "a100",
        "gpus": 4,
        "cpus": 128,
        "mem": "515000M",
    }


def test_another_partition() -> None:
    tree = yaml.safe_load(make_preset("mine", parse_rows(SINFO), "old", "login"))
    assert (tree["cluster"]["partition"], "gpu_type" in tree["cluster"]) == ("old", False)
    with pytest.raises(SubmitError, match="those with GPUs: gpu, old"):
        make_preset("mine", parse_rows(SINFO), "cpu", "login")


def test_no_gpus_and_bad_names() -> None:
    with pytest.raises(SubmitError, match="no node with GPUs"):
        make_preset("mine", parse_rows("cpu|(null)|64|256000|infinite|1\n"), None, "login")
    with pytest.raises(SubmitError, match="can't name a preset"):
        make_preset("../x", parse_rows(SINFO), None, "login")


@pytest.mark.parametrize(
    "answer",
    ["sinfo: error", "gpu|gpu:2|4", "gpu|gpu:2|many|1|1|1", "a|b|c|d|e|f|g", "gpu|gpu:2|-4|1|1|1", "\ufffd"],
)
def test_an_odd_answer_of_sinfo(answer: str) -> None:
    with pytest.raises(SubmitError, match=r"^sinfo answered .*, which is not of the form %R"):
        parse_rows(answer)


def test_odd_words_of_slurm_stay_words_in_the_preset() -> None:
    assert parse_rows("gpu|gpu:0,gpu:a100:0|4|1000|1:00|1\n\n") == []
    tree = yaml.safe_load(
        make_preset("mine", parse_rows("on|gpu:1g.5gb:7(S:0)|4|1000|UNLIMITED|1"), None, "007")
    )
    assert (tree["cluster"]["partition"], tree["cluster"]["gpu_type"]) == ("on", "1g.5gb")
    assert tree["cluster"]["site"]["hosts"] == ["007"]  # not every machine
    assert "max_time" not in tree["cluster"]["site"]
    tree = yaml.safe_load(make_preset("mine", parse_rows('a: "b|gpu:x{:2|4|1000|n/a|1'), None, "login"))
    assert tree["cluster"]["site"]["nodes"][0]["gpu_type"] == "x{"


def test_a_preset_that_can_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(
        SubmitError, match="can't be written: No such file or directory; without --write it is printed"
    ):
        new_cluster._write(tmp_path / "nothing" / "mine.yaml", "text")


def test_a_preset_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("mine")
    with pytest.raises(SubmitError, match="already exists"):
        new_cluster._write(tmp_path / "mine.yaml", "other")
    assert (tmp_path / "mine.yaml").read_text() == "mine"


@pytest.mark.slurm
@pytest.mark.needs_root
def test_a_real_sinfo(
    testbed_for: Callable[..., Testbed], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", testbed_for("technion").env()["PATH"])
    assert new_cluster.main(["mine"]) == 0
    tree = yaml.safe_load(capsys.readouterr().out)
    assert tree["cluster"]["gpu_type"] == "a100"
    assert tree["cluster"]["site"]["nodes"][0]["gpus"] == 8
