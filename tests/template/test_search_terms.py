"""Each search term leads to its page in messages, in --help and in the site's search."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.site import search_terms
from train_anywhere.config.command.compose import compose
from train_anywhere.config.command.diagnose import diagnose
from train_anywhere.config.other_names import (
    OTHER_WAYS,
    OWN_ARGUMENTS,
    keys_meant,
    page_address,
    with_keys_meant,
)
from train_anywhere.config.search_terms import TERMS, find_page
from train_anywhere.config.strict import unknown_key
from train_anywhere.errors import ConfigError
from train_anywhere.files import ROOT
from train_anywhere.launch import command
from train_anywhere.slurm.status.job_end import REASONS, in_words

WORDS = [term for terms, _, _ in TERMS for term in terms.split(", ")]

TYPED = {
    "class weights": "how-to/keras-fit",
    "custom dataset": "how-to/own-dataset",
    "job pending": "how-to/job-waits",
    "why does my job not start": "how-to/job-waits",
    "multi-gpu": "concepts/strategies",
    "wall time": "how-to/time-limit",
    "num_workers": "how-to/large-data",
    "TorchScript": "how-to/use-a-trained-model",
    "matplotlib": "how-to/figures",
    "LoRA": "how-to/fine-tune",
    "Hugging Face": "how-to/fine-tune",
    "lr finder": "how-to/hyperparameter-search",
    "pdb": "how-to/running-job",
    "deepspeed": "concepts/strategies",
    "S3": "how-to/large-data",
    "conda": "how-to/environments",
    "docker": "how-to/environments",
    "shared folder": "how-to/environments",
    "another cluster": "how-to/move-a-run",
    "learning rate scheduler": "how-to/trainer-options",
    "EMA": "how-to/trainer-options",
    "KERAS_BACKEND": "how-to/keras-fit",
}
"""Words that users typed without a hit, and the page for each."""

PHRASES = {
    "gradient checkpointing": "how-to/accumulate-gradients",
    "early stopping patience": "how-to/early-stopping",
    "sbatch array": "how-to/hyperparameter-search",
    "cuda out of memory": "how-to/troubleshooting",
    "wandb offline": "how-to/track-experiments",
    "learning rate warmup": "how-to/trainer-options",
    "mixed precision bf16": "how-to/accumulate-gradients",
    "CSVLogger": "how-to/track-experiments",
    "override group": "tutorials/getting-started",
    "module load": "how-to/environments",
    "freeze layers": "how-to/freeze-layers",
    "distributed sampler": "how-to/own-dataset",
    "jobs killed time limit": "how-to/time-limit",
    "scratch": "how-to/troubleshooting",
    "disk quota exceeded": "how-to/troubleshooting",
    "RichProgressBar": "how-to/monitoring",
    "custom callback": "how-to/your-code",
    "validation_step": "how-to/your-code",
    "multiple optimizers": "how-to/your-code",
    "save_hyperparameters": "how-to/your-code",
    "LightningDataModule": "how-to/own-dataset",
    "predict_step": "how-to/use-a-trained-model",
    "FSDP": "concepts/strategies",
    "cpu offload": "concepts/strategies",
    "OneCycleLR": "how-to/trainer-options",
    "MASTER_ADDR": "reference/environment-variables",
    "torchrun elastic": "concepts/strategies",
    "preempted": "how-to/time-limit",
    "save_best_only": "how-to/keras-fit",
    "linear scaling rule": "concepts/reproducibility",
    "transfer learning": "how-to/freeze-layers",
    "fine-tune bert": "how-to/fine-tune",
    "batch inference": "how-to/use-a-trained-model",
    "AUROC": "how-to/custom-metric",
    "WANDB_API_KEY": "how-to/track-experiments",
    "optuna pruning": "how-to/hyperparameter-search",
    "custom config": "tutorials/getting-started",
    "update template": "how-to/get-updates",
    "cancel job": "how-to/monitoring",
    "port forwarding": "how-to/from-your-laptop",
    "TMPDIR": "concepts/many-nodes",
    "hdf5": "how-to/own-dataset",
    "k-fold cross validation": "how-to/own-dataset",
    "ImageFolder": "how-to/own-dataset",
    "WeightedRandomSampler": "how-to/own-dataset",
    "mixup": "how-to/your-code",
    "tf32": "how-to/accumulate-gradients",
    "straggler": "how-to/job-hangs",
    "segfault": "reference/exit-codes",
    "tpu": "tutorials/getting-started",
    "kubernetes": "concepts/comparison",
    "fp8": "concepts/comparison",
    "flight recorder": "concepts/comparison",
    "tensor parallelism": "concepts/comparison",
    "LSF": "concepts/comparison",
    "Ray": "how-to/any-program",
    "lion optimizer": "how-to/your-code",
    "IterableDataset": "how-to/large-data",
    "quantization": "how-to/use-a-trained-model",
    "environment variables": "reference/environment-variables",
    "chain jobs": "how-to/chain-jobs",
    "exit codes": "reference/exit-codes",
    "LearningRateScheduler": "how-to/keras-fit",
    "fairshare priority": "how-to/job-waits",
}
"""What users of Lightning, Keras, Slurm, Hydra and W&B type after `--help`, and the page that answers."""

KEYS = {
    "weight decay": "optimizer.weight_decay",
    "time limit": "cluster.time",
    "memory per node": "cluster.mem",
    "batch size": "data.batch_size",
    "num_workers": "data.workers",
    "gpu hours": "cluster.max_gpu_hours",
    "steps_per_epoch": "trainer.limit_train_batches",
    "seed_everything": "",
    "max_epoch": "trainer.max_epochs",
}
"""The same for keys; "": only a page."""


def plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", text.lower())


def test_each_term_has_one_page_and_a_source() -> None:
    assert len(TERMS) >= 110 and len({*WORDS}) == len(WORDS)
    for terms, page, source in TERMS:
        text = plain((ROOT / page_address(page)).read_text())
        assert "." in source
        assert any(plain(term) in text for term in terms.split(", ")), (terms, page)


@pytest.mark.parametrize("term", TYPED)
def test_the_page_of_a_typed_word_has_it(term: str) -> None:
    assert find_page(term) == TYPED[term]
    assert find_page(f"trainer.{term.replace(' ', '_')}") == TYPED[term]


def test_the_search_of_the_site_reads_the_terms() -> None:
    for terms, page, _ in TERMS:
        shown = SimpleNamespace(file=SimpleNamespace(src_uri=f"{page}.md"), meta={})
        assert search_terms.on_page_markdown("# Title", shown) == "# Title"
        assert {*terms.split(", ")} <= {*shown.meta["tags"]}


def test_a_wrong_key_leads_to_the_page() -> None:
    tree = compose([])
    for term in WORDS:
        key = term.replace(" ", "_").replace("/", "_")
        said = with_keys_meant(unknown_key(key, "."), tree)
        other = keys_meant(key, tree) or key in {*OTHER_WAYS, *OWN_ARGUMENTS}
        assert (
            other
            or said == f"'{key}' is not a key of the configuration; see {page_address(str(find_page(key)))}."
        )
    said = diagnose(["strategy=deepspeed", "trainer.wandb=1"], ConfigError("x")).problems
    assert "About deepspeed: docs/concepts/strategies.md" in said[1]
    assert said[2].endswith("; see docs/how-to/track-experiments.md.")


@pytest.mark.parametrize("term", PHRASES)
def test_help_names_the_page_of_a_phrase(term: str, capsys: pytest.CaptureFixture[str]) -> None:
    command.help_sections(["--help", term])  # does not refuse it
    command.print_pages([term])
    assert capsys.readouterr().out.splitlines()[-1] == f"{term}: see docs/{PHRASES[term]}.md"


def test_help_names_the_keys_of_a_phrase() -> None:
    for words, key in KEYS.items():
        assert (key in command.help_sections(["--help", words])) == bool(key), words


def test_help_answers_a_key_a_name_and_a_term(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.help_sections(["--help", "optimizer.lr", "epochs"]) == [
        "optimizer.lr",
        "trainer.max_epochs",
    ]
    for term in TYPED:
        if command.help_sections(
            [term, "--help"]
        ):  # a key has this name: its line is printed before the page
            command.print_pages([term])
        else:
            with pytest.raises(SystemExit):
                command.build_hydra_arguments([term, "--help"])
        assert f"see docs/{TYPED[term]}.md" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="max_epok is not a section, a key or a term of the pages"):
        command.build_hydra_arguments(["--help", "max_epok"])


def test_help_prints_the_line_of_a_key(train: Callable[..., "subprocess.CompletedProcess[str]"]) -> None:
    done = train("--help", "learning_rate", "num_workers")
    assert done.stdout.splitlines()[0].startswith("data.workers: 0 "), done.stderr
    assert "optimizer.lr: 0.002" in done.stdout and "docs/how-to/large-data.md" in done.stdout


def test_reasons_of_waiting_jobs_are_on_their_page() -> None:
    page = (ROOT / "docs/how-to/job-waits.md").read_text()
    assert [words for _, words in REASONS if f"| {words} |" not in page] == []
    assert in_words("Priority") == f"Priority: {REASONS[0][1]}"
    for reason in (
        "ReqNodeNotAvail, UnavailableNodes:node[1-2]",
        "QOSMaxGRESPerUser",
        "QOSMaxNodePerJobLimit",
        "QOSMaxJobsPerUserLimit",
        "AssocGrpGRES",
        "AssocGrpCPUMinutesLimit",
        "(Resources)",
        "DependencyNeverSatisfied",
    ):
        assert ": " in in_words(reason) and "(" not in in_words(reason)[:1]
    assert in_words("Not Running: no nodes") == "Not Running: no nodes"


def python_block(page: str) -> str:
    return (ROOT / f"docs/how-to/{page}.md").read_text().partition("```python\n")[2].partition("```")[0]


def test_code_of_the_figure_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = compile(python_block("figures"), "figures.md", "exec")
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    (tmp_path / "results/latest").mkdir(parents=True)
    (tmp_path / "results/latest/metrics.csv").write_text("step,epoch,val/loss\n1,1,\n2,1,0.5\n3,2,0.25\n")
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert (tmp_path / "loss.pdf").is_file()


def test_code_of_the_keras_page() -> None:
    given = (
        "import numpy, tensorflow as tf\nlabels = numpy.array([0, 0, 0, 1])\nimages = numpy.zeros((4, 2))\n"
    )
    shown = "print([float(w) for w in next(iter(train))[2]])"
    program = given + python_block("keras-fit") + shown
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1].startswith("[0.666"), done.stderr
    assert done.stdout.strip().endswith(", 2.0]")
