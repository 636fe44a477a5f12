"""Contradictions between keys that are valid one by one, and with this machine, `cluster=local`."""

import re
from collections.abc import Callable

from train_anywhere.config.checks.program import program_problems
from train_anywhere.config.checks.strategy_table import AUTO_STRATEGIES, strategy_problems
from train_anywhere.config.checks.targets import check_extra
from train_anywhere.config.choices import Optimizer, Sgd, Strategy
from train_anywhere.config.cluster import Cluster
from train_anywhere.config.limits import span_bounds
from train_anywhere.config.paths import expand, make_absolute, resolve_node_path, write_problem
from train_anywhere.config.schema import Config, Trainer
from train_anywhere.errors import DataError

OFF = "or trainer.sync_batchnorm=false"

UNSUPPORTED = {"horovod": "rank", "dp": "device"}
"""Strategies without synchronized batch normalization, and what they normalize separately."""


def sync_batchnorm_problems(framework: str, strategy: Strategy, trainer: Trainer) -> list[str]:
    """Return one sentence for each reason why `trainer.sync_batchnorm=true` can't work."""
    name = strategy.name
    if not trainer.sync_batchnorm:
        return []
    if name in UNSUPPORTED:
        return [
            f"strategy={name} normalises the rows of each {UNSUPPORTED[name]} separately, and trainer.sync_batchnorm=true needs those of "
            f"all; use strategy={AUTO_STRATEGIES[framework][1]}, {OFF}."
        ]
    return _torch_problems(trainer) if framework == "lightning" else _keras_problems(trainer)


def _torch_problems(t: Trainer) -> list[str]:
    devices = t.devices if t.total_devices is None else t.total_devices
    several = t.max_nodes > 1 or devices not in ("auto", 1)
    return (
        [needs_gpus_problem("trainer.accelerator=cpu requests none")]
        if t.accelerator == "cpu" and several
        else []
    )


def needs_gpus_problem(reason: str) -> str:
    """Return the sentence for a run without GPUs; `reason` says why it has none."""
    return f"trainer.sync_batchnorm=true needs GPUs: torch supports it on GPUs only, and {reason}; use trainer.sync_batchnorm=false."


def _keras_problems(t: Trainer) -> list[str]:
    """Report keys that put the network into an inner graph: Keras can sum over replicas in the graph of the step only."""
    batches = f"trainer.accumulate_grad_batches={t.accumulate_grad_batches} computes the batches of a step in a loop"
    problems = {
        "trainer.accumulate_grad_batches=1": batches if t.accumulate_grad_batches > 1 else None,
        "trainer.compile=false": "trainer.compile=true makes the network one XLA function"
        if t.compile
        else None,
    }
    return [
        f"{problem}, in which Keras can't sum over the ranks as trainer.sync_batchnorm=true requires; use {instead}, {OFF}."
        for instead, problem in problems.items()
        if problem
    ]


Check = Callable[[Config], list[str]]
"""A check of a configuration. It returns one sentence for each problem."""


def find_contradictions(config: Config) -> list[str]:
    """Return one sentence for each contradiction between keys."""
    c, trainer, strategy = config, config.trainer, config.strategy
    return [
        *_check_from_scratch(c.from_scratch, c.resume),
        *_check_devices(trainer),
        *_check_mps(c.framework, c.cluster, trainer),
        *_check_nesterov(c.optimizer),
        *_check_early_stopping(trainer),
        *_check_epochs(trainer),
        *_check_validations(trainer),
        *check_extra(c),
        *_check_name(c.name),
        *program_problems(c),
        *_check_strategy(c.framework, strategy, trainer),
        *_check_shard_within_node(strategy, trainer),
        *_check_static_graph(strategy, trainer),
        *_check_compile_and_layout(strategy, trainer),
        *sync_batchnorm_problems(c.framework, strategy, trainer),
        *_check_lora(c),
    ]


def _check_lora(c: Config) -> list[str]:
    """Return why `model.lora` can't work with other keys."""
    lora, keras = c.model.lora, c.framework == "keras"
    wrong = {
        "strategy=fsdp splits the base that checkpoints leave out; use strategy=ddp": c.strategy.name
        == "fsdp",
        "framework=keras has no dropout of adapters; leave model.lora.dropout out": bool(
            keras and lora and lora.dropout
        ),
        "framework=keras needs the names of layers: model.lora.targets=[dense]": bool(
            keras and lora and not lora.targets
        ),
    }
    return [f"model.lora: {why}." for why, found in wrong.items() if lora and found]


def _check_from_scratch(from_scratch: bool, resume: str | None) -> list[str]:
    if from_scratch and resume is None:
        return ["from_scratch=true needs resume=RUN; a new run starts from scratch anyway."]
    return []


def _check_devices(t: Trainer) -> list[str]:
    if isinstance(t.nodes, str) or isinstance(t.total_devices, str):
        return _check_range(t)
    if t.devices == "auto" or t.total_devices in (None, t.devices * t.nodes):
        return []
    return [
        f"trainer.devices={t.devices} on each of trainer.nodes={t.nodes} and trainer.total_devices={t.total_devices} contradict each "
        "other; leave one of them out (trainer.devices=auto, trainer.total_devices=null)."
    ]


def _check_epochs(t: Trainer) -> list[str]:
    if t.min_epochs is None or t.min_epochs <= t.max_epochs:
        return []
    return [f"trainer.min_epochs={t.min_epochs} is more than trainer.max_epochs={t.max_epochs}; use fewer."]


def _check_validations(t: Trainer) -> list[str]:
    if t.check_val_every_n_epoch is not None or isinstance(t.val_check_interval, int):
        return []
    return [
        "trainer.check_val_every_n_epoch=null lets trainer.val_check_interval count steps over epochs, and "
        f"{t.val_check_interval} is a fraction of an epoch; use a number of steps, such as trainer.val_check_interval=1000."
    ]


def _check_range(t: Trainer) -> list[str]:
    """Return what contradicts a range of nodes or of devices."""
    if not isinstance(t.total_devices, str):
        if t.total_devices is None:
            return []
        return [
            f"trainer.nodes={t.nodes} and trainer.total_devices={t.total_devices} can't both hold; leave out trainer.total_devices, "
            "and give the number per node with trainer.devices."
        ]
    least, most = span_bounds(t.total_devices)
    if t.nodes != 1:
        return [
            f"trainer.nodes={t.nodes} and trainer.total_devices={t.total_devices} can't both hold; leave one of them out."
        ]
    if t.devices == "auto":
        return [
            f"trainer.total_devices={t.total_devices} is a range of nodes with the same number of devices each; give that number: "
            "trainer.devices=2."
        ]
    if least % t.devices or most % t.devices:
        fewest, all_of_them = max(1, least // t.devices) * t.devices, -(-most // t.devices) * t.devices
        nearest = str(fewest) if fewest == all_of_them else f"{fewest}-{all_of_them}"
        return [
            f"trainer.total_devices={t.total_devices} is not a range of whole nodes with trainer.devices={t.devices} each; use "
            f"trainer.total_devices={nearest}."
        ]
    return []


def _check_mps(framework: str, cluster: Cluster, t: Trainer) -> list[str]:
    if t.accelerator != "mps":
        return []
    several = t.devices not in (1, "auto") or t.total_devices not in (1, None)
    wrong = {
        f"framework={framework}: use framework=lightning": framework != "lightning",
        f"cluster={cluster.name}: leave cluster out": cluster.scheduler != "none",
        "several devices: use trainer.devices=1": several,
    }
    return [
        f"trainer.accelerator=mps, the GPU of a Mac, does not work with {what}."
        for what, found in wrong.items()
        if found
    ]


def _check_nesterov(optimizer: Optimizer) -> list[str]:
    if isinstance(optimizer, Sgd) and optimizer.nesterov and not optimizer.momentum:
        return [
            "optimizer.nesterov=true needs a momentum; use optimizer.momentum=0.9 or optimizer.nesterov=false."
        ]
    return []


def _check_early_stopping(t: Trainer) -> list[str]:
    patience, limit = t.early_stopping.patience, t.limit_val_batches
    if patience is None or limit or t.fast_dev_run:
        return []
    return [
        f"trainer.early_stopping.patience={patience} counts validations, and trainer.limit_val_batches={limit} turns "
        "them off; use trainer.limit_val_batches=1.0 or trainer.early_stopping.patience=null."
    ]


def _check_name(name: str) -> list[str]:
    if name.lower() == "latest":
        return [f"name={name} is the name of the link to the newest run; use another one."]
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,99}", name):
        return []
    return [
        f"name={name!r} can't name a folder and a job: use up to 100 letters, digits and . _ - = + only, "
        "and start with a letter or digit."
    ]


def _check_strategy(framework: str, strategy: Strategy, t: Trainer) -> list[str]:
    devices = t.total_devices if isinstance(t.total_devices, int) else t.devices
    return strategy_problems(framework, strategy.name, t.max_nodes, devices)


def _check_shard_within_node(strategy: Strategy, t: Trainer) -> list[str]:
    total, nodes = t.total_devices, t.max_nodes
    within = getattr(strategy, "shard_within_node", False)
    if not within or not isinstance(total, int) or total % nodes == 0:
        return []
    return [
        f"strategy.shard_within_node=true splits the model in the same way on each node, and trainer.nodes={nodes} can't have the "
        f"same number each of trainer.total_devices={total}; use trainer.total_devices={-(-total // nodes) * nodes}, or "
        "strategy.shard_within_node=false."
    ]


def _check_static_graph(strategy: Strategy, t: Trainer) -> list[str]:
    if not getattr(strategy, "static_graph", False) or t.accumulate_grad_batches == 1:
        return []
    return [
        f"strategy.static_graph=true does not work with trainer.accumulate_grad_batches={t.accumulate_grad_batches}: DDP "
        "takes a batch whose gradients are not sent for another graph; use strategy.static_graph=false."
    ]


def _check_compile_and_layout(strategy: Strategy, t: Trainer) -> list[str]:
    """Check `compile` and `channels_last` for strategies that copy or split the network within a process."""
    if strategy.name == "dp" and t.compile:
        return [
            "strategy=dp copies the network to each GPU in each step, but trainer.compile=true compiles it for one; use strategy=ddp, "
            "or trainer.compile=false."
        ]
    if strategy.name == "fsdp" and t.channels_last:
        return [
            "strategy=fsdp splits weights by rows, but trainer.channels_last=true stores those of convolutions in another order; use "
            "strategy=ddp, or trainer.channels_last=false."
        ]
    return []


def machine_problems(config: Config, gpus: Callable[[], int], ranks: int) -> list[str]:
    """Return one sentence for each thing that this machine can't do: a queue, several nodes, a container, a missing GPU.

    Args:
        config: the typed configuration.
        gpus: counts the GPUs of this machine; not called with trainer.accelerator=cpu.
        ranks: number of ranks of the run.
    """
    several = config.framework == "lightning" and ranks > 1
    on_cpu = config.trainer.accelerator == "cpu" or not gpus()
    sync_batchnorm = several and config.trainer.sync_batchnorm
    return [
        *scheduler_problems(config.cluster),
        *_node_problems(config.trainer, config.cluster.name),
        *_container_problems(config.container.name, config.cluster.name),
        *_local_folder_problems(config.checkpoint.local),
        *(_gpu_key_problems(config.strategy) if on_cpu else []),
        *([needs_gpus_problem("this run computes on the CPU")] if on_cpu and sync_batchnorm else []),
    ]


def scheduler_problems(cluster: Cluster) -> list[str]:
    """Return a sentence if `cluster=local` has a scheduler, since it submits nothing."""
    kind = cluster.scheduler
    if kind == "none":
        return []
    return [
        f"cluster={cluster.name} is this machine and has no cluster.scheduler={kind}; use cluster={kind} to submit a job."
    ]


def _node_problems(trainer: Trainer, cluster: str) -> list[str]:
    if trainer.max_nodes == 1:
        return []
    key = "total_devices" if isinstance(trainer.total_devices, str) else "nodes"
    return [
        f"trainer.{key}={getattr(trainer, key)} needs a cluster and cluster={cluster} is this machine; "
        "name one with cluster=..., or use trainer.nodes=1."
    ]


def _container_problems(container: str, cluster: str) -> list[str]:
    if container == "none":
        return []
    return [
        f"container={container} is for the ranks of a job, and cluster={cluster} is this machine, where they "
        "run in this Python; leave it out (container=none), or name a cluster."
    ]


FOR_GPUS = {"compression": ("bf16", "fp16"), "process_group_backend": ("nccl", "gloo")}
"""Keys of `strategy`, each with a value that works between GPUs only and one that works on CPUs."""


def _gpu_key_problems(strategy: Strategy) -> list[str]:
    return [
        f"strategy.{key}={value} needs GPUs, and this run computes on the CPU; use strategy.{key}={instead}."
        for key, (value, instead) in FOR_GPUS.items()
        if getattr(strategy, key, None) == value
    ]


def _local_folder_problems(location: str | None) -> list[str]:
    """Check the folder that `checkpoint.local` names."""
    if location in (None, "auto"):
        return []
    try:
        problem = write_problem(make_absolute(resolve_node_path(expand(location))))
    except (OSError, ValueError, DataError) as error:
        problem = str(error)
    advice = "use checkpoint.local=auto or another folder."
    return [f"checkpoint.local={location}: {problem}; {advice}"] if problem else []


def batch_size_problem(batch_size: int, devices: int, name: str = "devices") -> str:
    """Return why a global batch can't be shared evenly, with the nearest size that can; "" if it can.

    Args:
        batch_size: rows of the global batch.
        devices: number of devices, or of other parts, that share it.
        name: what the parts are called, for the message.
    """
    if not batch_size % devices:
        return ""
    nearest = max(1, round(batch_size / devices)) * devices
    return (
        f"data.batch_size={batch_size} is the global batch and can't be shared evenly by {devices} {name}; "
        f"use data.batch_size={nearest}."
    )
