"""What is said of texts before a run starts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train_anywhere.config.load import load, to_tree
from train_anywhere.data.text.checks import text
from train_anywhere.files import ROOT
from train_anywhere.launch.preflight import check_data


def known(corpus: Path | None, cache: Path, look: bool = True, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "dir": corpus and str(corpus),
        "files": ["*.txt", "*.jsonl"],
        "text_key": "text",
        "cache": str(cache),
        "tokenizer": "bpe",
        "vocabulary": 320,
        "val_fraction": 0.1,
        "test_fraction": 0.1,
        "length": 16,
        "look": look,
    }
    return text(**settings | changes)


def test_what_a_model_needs_is_known(corpus: Path, tmp_path: Path) -> None:
    assert known(corpus, tmp_path).facts == {"vocabulary": 320, "length": 16}
    assert known(None, tmp_path, tokenizer="bytes").facts == {"vocabulary": 257, "length": 16}
    assert known(corpus, tmp_path).problems == known(None, tmp_path).problems == ()


def test_texts_are_looked_at_where_they_are(tmp_path: Path) -> None:
    """What is wrong with them is said in engine/tests/bad_inputs/rows/texts.py."""
    [problem] = known(tmp_path, tmp_path).problems
    assert "has no text files" in problem
    assert known(tmp_path, tmp_path, look=False).problems == ()


def test_nothing_is_made_before_a_run(corpus: Path, tmp_path: Path) -> None:
    known(corpus, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_all_problems_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = known(tmp_path / "none", tmp_path / "file", val_fraction=0.5, test_fraction=0.5).problems
    assert [f.partition("=")[0].partition(":")[0] for f in found] == [
        "data.val_fraction",
        "data.dir",
        "data.cache",
    ]


def test_a_run_asks_this_check(make_config: Callable[..., Any], tmp_path: Path) -> None:
    config = make_config("data=text", f"data.dir={tmp_path}/none", f"paths.data={tmp_path}")
    assert (
        check_data(config.data, look=True).problems
        == known(tmp_path / "none", tmp_path / "text").problems
        != ()
    )


def test_folders_are_absolute_in_the_run_folder_and_may_be_null(make_config: Callable[..., Any]) -> None:
    tree = to_tree(make_config("data=text", "data.cache=tokens"))
    assert tree["data"]["dir"] is None and tree["data"]["cache"] == str(ROOT / "tokens")
    again = to_tree(load(to_tree(make_config("data=text", "data.dir=a\\$b"))))
    assert again["data"]["dir"] == f"{ROOT}/a\\$b"


def test_a_variable_in_the_cache_s_folder_is_read_where_the_command_is_typed(
    make_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH_HERE", "/scratch/ada")
    tree = to_tree(make_config("data=text", "paths.data='${oc.env:SCRATCH_HERE}'"))
    assert tree["data"]["cache"] == "/scratch/ada/text"
