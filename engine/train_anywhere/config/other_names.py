"""Find the key that is meant by a name of another section or program."""

import json
import re
from collections.abc import Mapping
from typing import Any

from train_anywhere.config.keys import flatten
from train_anywhere.config.search_terms import find_page
from train_anywhere.files import ROOT

OTHER_NAMES = {
    "name": "job_name experiment_name run_name task_name",
    "note": "description",
    "seed": "random_seed random_state data_seed manual_seed",
    "resume": "ckpt_path checkpoint_path resume_from resume_from_checkpoint",
    "init": "load_weights pretrained_weights weights_path",
    "after": "dependency",
    "wait": "block",
    "dry_run": "test_only dryrun print_config",
    "loggers": "logger report_to",
    "strategy": "backend distributed_backend ddp_backend",
    "launch": "launcher start_method",
    "task": "lit_module pl_module",
    "data": "dataset datamodule dataloader train_dataloaders val_dataloaders",
    "trainer.nodes": "num_nodes nnodes n_nodes num_machines",
    "trainer.devices": "gpus num_gpus ngpus gpus_per_node gpus_per_task ntasks_per_node tasks_per_node nproc_per_node num_processes "
    "local_world_size auto_select_gpus gpus_per_socket ntasks_per_gpu ntasks_per_socket",
    "trainer.total_devices": "ntasks num_tasks world_size",
    "trainer.accelerator": "device cpu no_cuda use_cpu use_cuda tpu_cores",
    "trainer.max_epochs": "epochs num_epochs n_epochs num_train_epochs",
    "trainer.min_epochs": "start_from_epoch min_steps",
    "trainer.max_steps": "steps num_steps num_train_steps max_iters",
    "trainer.limit_train_batches": "steps_per_epoch",
    "trainer.limit_val_batches": "validation_steps",
    "trainer.check_val_every_n_epoch": "validation_freq",
    "trainer.val_check_interval": "eval_steps eval_strategy evaluation_strategy",
    "trainer.log_every_n_steps": "logging_steps update_freq",
    "trainer.precision": "amp fp16 bf16 mixed_precision amp_backend amp_level dtype",
    "trainer.accumulate_grad_batches": "gradient_accumulation gradient_accumulation_steps accumulation_steps",
    "trainer.gradient_clip_val": "grad_clip gradient_clip clipnorm clipvalue global_clipnorm max_grad_norm track_grad_norm",
    "trainer.detect_nan": "terminate_on_nan",
    "trainer.find_unused_parameters": "ddp_find_unused_parameters",
    "trainer.compile": "torch_compile jit_compile",
    "trainer.early_stopping.patience": "early_stopping_patience",
    "trainer.extra": "benchmark inference_mode detect_anomaly plugins enable_autolog_hparams model_registry",
    "checkpoint.every_n_epochs": "save_strategy",
    "checkpoint.every_n_steps": "every_n_train_steps save_steps save_freq",
    "checkpoint.every_n_seconds": "train_time_interval",
    "checkpoint.keep_last": "save_last save_total_limit max_to_keep",
    "checkpoint.monitor": "metric_for_best_model optimized_metric",
    "checkpoint.mode": "greater_is_better",
    "optimizer": "optim",
    "optimizer.lr": "learning_rate base_lr",
    "optimizer.betas": "beta_1 beta_2 adam_beta1 adam_beta2",
    "optimizer.eps": "epsilon adam_epsilon",
    "schedule": "scheduler lr_scheduler lr_scheduler_type",
    "schedule.warmup_epochs": "warmup warmup_steps warmup_ratio num_warmup_steps",
    "data.batch_size": "batch bs per_device_batch_size validation_batch_size per_device_train_batch_size per_device_eval_batch_size "
    "train_batch_size eval_batch_size micro_batch_size global_batch_size",
    "data.workers": "num_workers n_workers dataloader_num_workers",
    "paths.data": "data_dir data_path dataset_dir",
    "paths.results": "output output_dir log_dir logdir save_dir default_root_dir results_dir dirpath filepath weights_save_path",
    "monitor.progress": "verbose enable_progress_bar enable_model_summary weights_summary progress_bar_refresh_rate",
    "cluster.time": "walltime time_limit timeout_min",
    "cluster.partition": "queue",
    "cluster.mem": "memory ram mem_gb",
    "cluster.cpus_per_task": "cpus num_cpus cpus_per_gpu",
    "cluster.gpu_type": "gpu",
    "cluster.modules": "module",
    "cluster.conda": "conda_env",
    "cluster.venv": "virtualenv",
    "cluster.exclude": "exclude_nodes",
    "cluster.requeue": "no_requeue max_num_timeout",
    "cluster.retries": "max_restarts",
    "cluster.max_running": "array_parallelism",
    "cluster.signal_seconds": "signal signal_delay_s",
    "cluster.setup": "prologue",
    "cluster.extra": "additional_parameters acctg_freq bb bbf cluster_constraint contiguous core_spec cores_per_socket cpu_freq "
    "deadline delay_boot distribution export gpu_bind gpu_freq gres_flags hint hold licenses mcs_label mem_bind "
    "mincpus network nodefile ntasks_per_core overcommit oversubscribe power prefer priority propagate reboot "
    "resv_ports segment sockets_per_node spread_job switches profile thread_spec threads_per_core tmp use_min_nodes "
    "wait_all_nodes wckey",
}
"""Keys, each with the names under which users of Slurm, Lightning, Keras and torchrun may type it."""

TYPED = {"trainer.extra": "trainer.extra.{}", "cluster.extra": "cluster.extra=[--{}=...]"}
"""Keys that take the arguments of another program, with how one is typed."""

OTHER_WAYS = {
    name: way
    for way, names in {
        "return the weight of each row's class as its sample weight, the third value of a row, from the data": "class_weight",
        "return it as the third value of each row from the data: (x, y, weight)": "sample_weight",
        "resume=RUN continues at the epoch of its checkpoint, and init=RUN starts at the first with its weights": "initial_epoch",
        "let data._target_ return the validation rows too: (train, val)": "validation_split validation_data val_split test_split "
        "train_val_test_split",
        "a tf.data.Dataset, a PyDataset or a generator from data._target_ is read in its own order": "shuffle",
        "leave it out: each call makes one step": "steps_per_execution",
        "compile the keras.Model with it in the function that task._target_ names": "loss loss_weights metrics weighted_metrics "
        "run_eagerly auto_scale_loss",
        "the best checkpoint by checkpoint.monitor is always kept, and is what the test and exports use": "restore_best_weights "
        "load_best_model_at_end save_best_only save_top_k",
        "leave it out: a checkpoint has all that a resume needs, and `evaluate.py --export` writes only weights": "save_weights_only",
        "type callbacks.stop._target_=lightning.pytorch.callbacks.EarlyStopping with its arguments as keys": "check_finite "
        "stopping_threshold divergence_threshold",
        "type callbacks.plateau._target_=keras.callbacks.ReduceLROnPlateau with its arguments as keys": "cooldown min_lr",
        "type loggers=wandb, whose keys are loggers.wandb.project, entity, group, tags, name and offline": "project entity job_type "
        "wandb_project wandb_entity group",
        "type -m and several values of a key: a sweep is one job array": "array hparams_search",
        "the output is in the run folder, and `python src/jobs.py logs` prints it": "error stderr stdout log_file open_mode",
        "any command runs with python src/run.py cluster=NAME -- COMMAND": "wrap",
        "type experiment=debug, a short run": "debug",
    }.items()
    for name in names.split()
}
"""Arguments of other programs that are no key, each with what to do instead."""

OWN_ARGUMENTS = {
    "strategy": "strategy=NAME", "devices": "trainer.devices", "num_nodes": "trainer.nodes", "accelerator": "trainer.accelerator",
    "precision": "trainer.precision", "logger": "loggers.NAME._target_", "callbacks": "callbacks.NAME._target_",
    "default_root_dir": "paths.results", "enable_checkpointing": "checkpoint.*", "enable_progress_bar": "monitor.progress",
    "use_distributed_sampler": "the data itself", "enable_model_summary": "monitor.progress", "fast_dev_run": "trainer.fast_dev_run",
    "reload_dataloaders_every_n_epochs": "a data set that changes its rows itself", "barebones": "monitor.* and checkpoint.*",
}  # fmt: skip
"""Arguments of Lightning's Trainer that this project sets, and what to use instead."""

REMOVED = {
    "'trainer.fast_step' is not": "trainer.fast_step was removed: Lightning's own loop runs each step; leave it out.",
    "trainer.detect_nan='replay' ": "trainer.detect_nan=replay is not available: use trainer.detect_nan=stop, "
    "and resume the run from the checkpoint before that step.",
    "'cluster.pack_env' is not": "cluster.pack_env was removed: use a container, or let each node unpack one file with "
    "cluster.setup, see docs/how-to/environments.md.",
    "monitor.idle='stop' ": "monitor.idle=stop was removed: use monitor.idle=warn, which prints a line when GPUs do nothing, and "
    "`python src/jobs.py cancel`, which saves a checkpoint.",
    "'monitor.notify' is not": "monitor.notify was removed: use cluster.mail_type=ALL, or the alerts of your tracker.",
}
"""Messages for keys and values that were removed, by how the general message begins."""

UNKNOWN = re.compile(r"'([^']+)' is not (a key of the configuration|an argument of [\w.]+)")
"""Start of a message about an unknown key."""

SITE = "cluster.site."
"""Facts of a preset, which have names like those of keys that are typed."""


def with_keys_meant(problem: str, tree: Mapping[str, Any]) -> str:
    """Return the message about an unknown key or removed value with what is meant."""
    if removed := next((text for start, text in REMOVED.items() if problem.startswith(start)), None):
        return removed
    unknown = UNKNOWN.match(problem)
    if not unknown or (unknown[2].startswith("an") and "Did you mean" in problem):
        return problem
    hint = _hint(unknown[1], tree)
    start = unknown[0] if unknown[2].startswith("a key") else problem.removesuffix(".")
    return f"{start}{hint}" if hint else problem


def _hint(word: str, tree: Mapping[str, Any]) -> str:
    """Return the end of a message about an unknown key; "" if what is meant is not known."""
    last = word.rpartition(".")[2]
    if way := OTHER_WAYS.get(last):
        return f"; {way}."
    if meant := keys_meant(word, tree):
        option = last.replace("_", "-") if "cluster.extra" in meant else last
        typed = [f"'{TYPED.get(other, other).format(option)}'" for other in meant]
        return f". Did you mean {' or '.join(typed)}?"
    if own := OWN_ARGUMENTS.get(last):
        return f"; use {own}."
    page = find_page(word)
    return f"; see {page_address(page)}." if page else ""


def keys_meant(word: str, tree: Mapping[str, Any]) -> list[str]:
    """Return the key with this other name, else those of other sections with the same end."""
    if word.startswith(SITE):
        return []
    last = word.rpartition(".")[2].lower().replace("-", "_").replace(" ", "_").removeprefix("slurm_")
    if meant := [key for key, names in OTHER_NAMES.items() if last in names.split()]:
        return meant
    known = map(str, {**flatten(tree), **tree})
    keys = [key for key in known if key != word and not key.startswith(SITE)]
    same = [key for key in keys if key.rpartition(".")[2] == last]
    return same if len(same) <= 3 else []  # such as `name`, which many sections have


def page_address(page: str) -> str:
    """Return where a page is: a file of the template, or the address that this project was made with."""
    made = ROOT / ".train-anywhere"
    pages = (
        ""
        if (ROOT / "docs").is_dir() or not made.is_file()
        else json.loads(made.read_text())["choices"]["pages"]
    )
    return f"{pages or 'docs'}/{page}.md"
