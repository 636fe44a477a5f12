"""Find the key that is meant by a name of another section or program."""

import json
from collections.abc import Mapping
from typing import Any

from train_anywhere.config.keys import flatten
from train_anywhere.config.search_terms import find_page
from train_anywhere.files import ROOT

OTHER_NAMES = {
    "name": "job_name experiment_name run_name",
    "resume": "ckpt_path checkpoint_path resume_from resume_from_checkpoint",
    "after": "dependency",
    "wait": "block",
    "dry_run": "test_only dryrun",
    "strategy": "backend distributed_backend",
    "trainer.nodes": "num_nodes nnodes n_nodes",
    "trainer.devices": "gpus num_gpus ngpus gpus_per_node ntasks_per_node tasks_per_node nproc_per_node",
    "trainer.total_devices": "ntasks num_tasks world_size",
    "trainer.max_epochs": "epochs num_epochs n_epochs",
    "trainer.max_steps": "steps num_steps",
    "trainer.limit_train_batches": "steps_per_epoch",
    "trainer.limit_val_batches": "validation_steps",
    "trainer.check_val_every_n_epoch": "validation_freq",
    "trainer.precision": "amp fp16 bf16 mixed_precision",
    "trainer.accumulate_grad_batches": "gradient_accumulation gradient_accumulation_steps accumulation_steps",
    "trainer.gradient_clip_val": "grad_clip gradient_clip clipnorm max_grad_norm",
    "trainer.compile": "torch_compile jit_compile",
    "optimizer.lr": "learning_rate",
    "data.batch_size": "batch bs per_device_batch_size validation_batch_size",
    "data.workers": "num_workers n_workers",
    "paths.data": "data_dir data_path dataset_dir",
    "paths.results": "output output_dir log_dir default_root_dir results_dir",
    "cluster.time": "walltime time_limit",
    "cluster.partition": "queue",
    "cluster.mem": "memory ram",
    "cluster.cpus_per_task": "cpus num_cpus cpus_per_gpu",
    "cluster.gpu_type": "gpu",
    "cluster.modules": "module",
    "cluster.conda": "conda_env",
    "monitor.progress": "verbose",
}
"""Keys, each with the names under which users of Slurm, Lightning, Keras and torchrun may type it."""

OTHER_WAYS = {
    "class_weight": "return the weight of each row's class as its sample weight, the third value of a row, from the data",
    "sample_weight": "return it as the third value of each row from the data: (x, y, weight)",
    "initial_epoch": "resume=RUN continues at the epoch of its checkpoint, and init=RUN starts at the first with its weights",
    "validation_split": "let data._target_ return the validation rows too: (train, val)",
    "validation_data": "let data._target_ return the validation rows too: (train, val)",
    "shuffle": "a tf.data.Dataset, a PyDataset or a generator from data._target_ is read in its own order",
    "steps_per_execution": "leave it out, since a native task makes several steps per call by itself",
}
"""Arguments of `fit` and `compile` of Keras that are no key, each with what to do instead."""

REMOVED = {
    "trainer.detect_nan='replay' ": "trainer.detect_nan=replay is not available: use trainer.detect_nan=stop, "
    "and resume the run from the checkpoint before that step."
}
"""Messages for values that were removed, by how the general message begins."""

UNKNOWN = "' is not a key of the configuration"
"""What follows the key in a message."""

SITE = "cluster.site."
"""Facts of a preset, which have names like those of keys that are typed."""


def with_keys_meant(problem: str, tree: Mapping[str, Any]) -> str:
    """Return the message about an unknown key or removed value with what is meant."""
    if removed := next((text for start, text in REMOVED.items() if problem.startswith(start)), None):
        return removed
    key, unknown, _ = problem.partition(UNKNOWN)
    if not unknown:
        return problem
    word = key.removeprefix("'")
    if way := OTHER_WAYS.get(word.rpartition(".")[2]):
        return f"{key}{unknown}; {way}."
    if meant := [f"'{other}'" for other in keys_meant(word, tree)]:
        return f"{key}{unknown}. Did you mean {' or '.join(meant)}?"
    page = find_page(word)
    return f"{key}{unknown}; see {page_address(page)}." if page else problem


def keys_meant(word: str, tree: Mapping[str, Any]) -> list[str]:
    """Return the key with this other name, else those of other sections with the same end."""
    if word.startswith(SITE):
        return []
    last = word.rpartition(".")[2].lower().replace("-", "_")
    if meant := [key for key, names in OTHER_NAMES.items() if last in names.split()]:
        return meant
    keys = [key for key in flatten(tree) if key != word and not key.startswith(SITE)]
    same = [key for key in keys if key.rpartition(".")[2] == last]
    return same if len(same) <= 3 else []  # such as `name`, which many sections have


def page_address(page: str) -> str:
    """Return where a page is: a file of this project, or the address it was made with."""
    made = ROOT / ".train-anywhere"
    if (ROOT / "docs").is_dir() or not made.is_file():
        return f"docs/{page}.md"
    return f"{json.loads(made.read_text())['choices']['pages']}/{page}.md"
