"""Contradictions between keys, and between keys and this machine."""

from collections.abc import Callable, Iterator

from train_anywhere.config.checks.program import program_problems
from train_anywhere.config.checks.strategy_table import AUTO_STRATEGIES, strategy_problems
from train_anywhere.config.checks.targets import check_extra, task_has_network
from train_anywhere.config.choices import Sgd, Strategy
from train_anywhere.config.cluster import Cluster
from train_anywhere.config.limits import span_bounds
from train_anywhere.config.paths import expand, is_run_name, make_absolute, resolve_node_path, write_problem
from train_anywhere.config.schema import Config, Trainer
from train_anywhere.errors import DataError

OFF = "or trainer.sync_batchnorm=false"

Check = Callable[[Config], list[str]]
"""A check of a configuration. It returns one sentence for each problem."""


def find_contradictions(config: Config) -> Iterator[str]:
    """Yield one sentence for each contradiction between keys."""
    c, trainer, strategy = config, config.trainer, config.strategy
    if c.from_scratch and c.resume is None:
        yield "from_scratch=true needs resume=RUN; a new run starts from scratch anyway."
    yield from check_devices(trainer)
    if trainer.accelerator == "mps":
        yield from _mps_problems(c.framework, c.cluster, trainer)
    if isinstance(c.optimizer, Sgd) and c.optimizer.nesterov and not c.optimizer.momentum:
        yield "optimizer.nesterov=true needs a momentum; use optimizer.momentum=0.9 or optimizer.nesterov=false."
    if c.cluster.members_per_gpu or c.cluster.members_per_node:
        yield from _pack_problems(c)
    yield from _loop_problems(trainer)
    endless = trainer.max_epochs == -1 and trainer.max_steps is None and c.schedule.name == "cosine"
    if endless and not task_has_network(c.task, c.framework):
        yield (
            "schedule=cosine ends at the last step, and trainer.max_epochs=-1 has none; use trainer.max_steps=N, or "
            "schedule=constant."
        )
    if trainer.micro_batch and not c.program:
        yield from _micro_batch_problems(c, trainer.micro_batch)
    yield from check_extra(trainer, c.framework)
    if c.framework == "keras" and trainer.precision.endswith("-true"):
        yield f"trainer.precision={trainer.precision} is for Lightning only; use 32, bf16-mixed or 16-mixed."
    if c.framework == "keras" and trainer.num_sanity_val_steps:
        yield (
            f"trainer.num_sanity_val_steps={trainer.num_sanity_val_steps} is for Lightning only; to try a validation first, run once with "
            "trainer.fast_dev_run=true."
        )
    yield from check_name(c.name)
    if c.program:
        yield from program_problems(c.program, c.args)
    devices = trainer.total_devices if isinstance(trainer.total_devices, int) else trainer.devices
    yield from strategy_problems(c.framework, strategy.name, trainer.max_nodes, devices)
    yield from _strategy_problems(strategy, trainer)
    if trainer.sync_batchnorm:
        yield from _sync_batchnorm_problems(c.framework, strategy.name, trainer)
    if c.model.lora and strategy.name == "fsdp":
        yield "model.lora: strategy=fsdp splits the base that checkpoints leave out; use strategy=ddp."
    if c.model.lora and c.framework == "keras":
        if c.model.lora.dropout:
            yield "model.lora: framework=keras has no dropout of adapters; leave model.lora.dropout out."
        if not c.model.lora.targets:
            yield "model.lora: framework=keras needs the names of layers: model.lora.targets=[dense]."


def check_devices(t: Trainer) -> Iterator[str]:
    """Yield what contradicts the number of devices, or a range of nodes or devices."""
    both = f"trainer.nodes={t.nodes} and trainer.total_devices={t.total_devices} can't both hold; leave"
    if isinstance(t.total_devices, str):
        yield from _range_problems(t, t.total_devices, both)
    elif isinstance(t.nodes, str):
        if t.total_devices is not None:
            yield f"{both} out trainer.total_devices, and give the number per node with trainer.devices."
    elif t.devices != "auto" and t.total_devices not in (None, t.devices * t.nodes):
        yield (
            f"trainer.devices={t.devices} on each of trainer.nodes={t.nodes} and trainer.total_devices={t.total_devices} contradict each "
            "other; leave one of them out (trainer.devices=auto, trainer.total_devices=null)."
        )


def _range_problems(t: Trainer, total: str, both: str) -> Iterator[str]:
    least, most = span_bounds(total)
    if t.nodes != 1:
        yield f"{both} one of them out."
    elif t.devices == "auto":
        yield (
            f"trainer.total_devices={total} is a range of nodes with the same number of devices each; give that number: "
            "trainer.devices=2."
        )
    elif least % t.devices or most % t.devices:
        fewest, all_of_them = max(1, least // t.devices) * t.devices, -(-most // t.devices) * t.devices
        nearest = str(fewest) if fewest == all_of_them else f"{fewest}-{all_of_them}"
        yield (
            f"trainer.total_devices={total} is not a range of whole nodes with trainer.devices={t.devices} each; use "
            f"trainer.total_devices={nearest}."
        )


def _pack_problems(c: Config) -> Iterator[str]:
    """Yield what contradicts several members of a sweep in one job."""
    cluster, t = c.cluster, c.trainer
    name = "members_per_gpu" if cluster.members_per_gpu else "members_per_node"
    wrong = {
        f"trainer.nodes={t.nodes}, and a member has one node": t.nodes != 1,
        f"trainer.devices={t.devices}, and a member has one rank": t.devices not in (1, "auto"),
        f"trainer.total_devices={t.total_devices}, and a member has one rank": t.total_devices
        not in (1, None),
        f"launch={c.launch}, and srun starts these members": c.launch not in ("auto", "srun"),
        f"the scheduler of {cluster.name}, which is not Slurm": cluster.scheduler == "pbs",
    }
    for what in (what for what, found in wrong.items() if found):
        yield f"cluster.{name}={getattr(cluster, name)} does not go with {what}; leave one of them out."
    if cluster.members_per_gpu and t.accelerator == "cpu":
        yield f"cluster.members_per_gpu={cluster.members_per_gpu} needs a GPU, and trainer.accelerator=cpu; use cluster.members_per_node."
    if cluster.pack < (cluster.members_per_gpu or 1):
        yield (
            f"cluster.members_per_gpu={cluster.members_per_gpu} is more than cluster.members_per_node={cluster.members_per_node}; "
            "leave members_per_node out."
        )


def _mps_problems(framework: str, cluster: Cluster, t: Trainer) -> Iterator[str]:
    wrong = {
        f"framework={framework}: use framework=lightning": framework != "lightning",
        f"cluster={cluster.name}: leave cluster out": cluster.scheduler != "none",
        "several devices: use trainer.devices=1": t.devices not in (1, "auto")
        or t.total_devices not in (1, None),
    }
    for what in (what for what, found in wrong.items() if found):
        yield f"trainer.accelerator=mps, the GPU of a Mac, does not work with {what}."


def _micro_batch_problems(c: Config, rows: int) -> Iterator[str]:
    """Yield what contradicts the division of a batch into parts."""
    batch, t, keras = c.data.batch_size, c.trainer, c.framework == "keras"
    if batch % rows:
        fitting = max(n for n in range(1, min(rows, batch) + 1) if batch % n == 0)
        yield f"trainer.micro_batch={rows} does not divide data.batch_size={batch}; use trainer.micro_batch={fitting}."
    for name in ("limit_train_batches", "overfit_batches"):
        if isinstance(value := getattr(t, name), float) and value != 1.0:
            yield f"trainer.{name}={value} may end within a batch that trainer.micro_batch divides; use a number of batches."
    whole = {
        "strategy.static_graph=true": getattr(c.strategy, "static_graph", False),
        "trainer.sync_batchnorm=true": keras and t.sync_batchnorm,
        "trainer.extra.class_weight": keras and "class_weight" in t.extra,
    }
    for key in (key for key, found in whole.items() if found):
        yield f"{key} needs whole batches, and trainer.micro_batch={rows} divides them; leave one of them out."


def _loop_problems(t: Trainer) -> Iterator[str]:
    patience, limit = t.early_stopping.patience, t.limit_val_batches
    if patience is not None and not limit and not t.fast_dev_run:
        yield (
            f"trainer.early_stopping.patience={patience} counts validations, and trainer.limit_val_batches={limit} turns "
            "them off; use trainer.limit_val_batches=1.0 or trainer.early_stopping.patience=null."
        )
    if t.check_val_every_n_epoch is None and not isinstance(t.val_check_interval, int):
        yield (
            "trainer.check_val_every_n_epoch=null lets trainer.val_check_interval count steps over epochs, and "
            f"{t.val_check_interval} is a fraction of an epoch; use a number of steps, such as trainer.val_check_interval=1000."
        )


def check_name(name: str) -> Iterator[str]:
    """Yield why a run can't have this name."""
    if name.lower() == "latest":
        yield f"name={name} is the name of the link to the newest run; use another one."
    elif not is_run_name(name):
        yield (
            f"name={name!r} can't name a folder and a job: use up to 100 letters, digits and . _ - = + only, "
            "and start with a letter or digit."
        )


def _strategy_problems(strategy: Strategy, t: Trainer) -> Iterator[str]:
    """Yield what contradicts the options of a strategy, and what it can't do."""
    total, nodes = t.total_devices, t.max_nodes
    if getattr(strategy, "shard_within_node", False) and isinstance(total, int) and total % nodes:
        yield (
            f"strategy.shard_within_node=true splits the model in the same way on each node, and trainer.nodes={nodes} can't have the "
            f"same number each of trainer.total_devices={total}; use trainer.total_devices={-(-total // nodes) * nodes}, or "
            "strategy.shard_within_node=false."
        )
    if getattr(strategy, "static_graph", False) and t.accumulate_grad_batches != 1:
        yield (
            f"strategy.static_graph=true does not work with trainer.accumulate_grad_batches={t.accumulate_grad_batches}: DDP "
            "takes a batch whose gradients are not sent for another graph; use strategy.static_graph=false."
        )
    if strategy.name == "fsdp" and t.channels_last:
        yield (
            "strategy=fsdp splits weights by rows, but trainer.channels_last=true stores those of convolutions in another order; use "
            "strategy=ddp, or trainer.channels_last=false."
        )


def _sync_batchnorm_problems(framework: str, strategy: str, t: Trainer) -> Iterator[str]:
    """Yield why `trainer.sync_batchnorm=true` can't work."""
    if strategy == "horovod":
        yield (
            f"strategy=horovod normalises the rows of each rank separately, and trainer.sync_batchnorm=true needs "
            f"those of all; use strategy={AUTO_STRATEGIES[framework][1]}, {OFF}."
        )
    elif framework == "lightning":
        devices = t.devices if t.total_devices is None else t.total_devices
        if t.accelerator == "cpu" and (t.max_nodes > 1 or devices not in ("auto", 1)):
            yield needs_gpus_problem("trainer.accelerator=cpu requests none")
    else:
        why = "in which Keras can't sum over the ranks as trainer.sync_batchnorm=true requires; use"
        if (batches := t.accumulate_grad_batches) > 1:
            loop = f"trainer.accumulate_grad_batches={batches} computes the batches of a step in a loop"
            yield f"{loop}, {why} trainer.accumulate_grad_batches=1, {OFF}."
        if t.compile:
            yield f"trainer.compile=true makes the network one XLA function, {why} trainer.compile=false, {OFF}."


def needs_gpus_problem(reason: str) -> str:
    """Return the sentence for a run without GPUs. `reason` says why it has none."""
    return f"trainer.sync_batchnorm=true needs GPUs: torch supports it on GPUs only, and {reason}; use trainer.sync_batchnorm=false."


def machine_problems(config: Config, gpus: Callable[[], int], ranks: int) -> Iterator[str]:
    """Yield one sentence for each thing that this machine can't do.

    `gpus` counts the GPUs of this machine. It is not called with trainer.accelerator=cpu.
    """
    t, cluster, container = config.trainer, config.cluster.name, config.container.name
    on_cpu = t.accelerator == "cpu" or not gpus()
    yield from scheduler_problems(config.cluster)
    if t.max_nodes > 1:
        key = "total_devices" if isinstance(t.total_devices, str) else "nodes"
        yield (
            f"trainer.{key}={getattr(t, key)} needs a cluster and cluster={cluster} is this machine; "
            "name one with cluster=..., or use trainer.nodes=1."
        )
    if container != "none":
        yield (
            f"container={container} is for the ranks of a job, and cluster={cluster} is this machine, where they "
            "run in this Python; leave it out (container=none), or name a cluster."
        )
    if (location := config.checkpoint.local) not in (None, "auto"):
        try:
            problem = write_problem(make_absolute(resolve_node_path(expand(location))))
        except (OSError, ValueError, DataError) as error:
            problem = str(error)
        if problem:
            yield f"checkpoint.local={location}: {problem}; use checkpoint.local=auto or another folder."
    for key, value, instead in (("compression", "bf16", "fp16"), ("process_group_backend", "nccl", "gloo")):
        if on_cpu and getattr(config.strategy, key, None) == value:
            yield f"strategy.{key}={value} needs GPUs, and this run computes on the CPU; use strategy.{key}={instead}."
    if on_cpu and config.framework == "lightning" and ranks > 1 and t.sync_batchnorm:
        yield needs_gpus_problem("this run computes on the CPU")


def scheduler_problems(cluster: Cluster) -> Iterator[str]:
    """Yield a sentence if `cluster=local` has a scheduler, since it submits nothing."""
    name, kind = cluster.name, cluster.scheduler
    if kind != "none":
        yield f"cluster={name} is this machine and has no cluster.scheduler={kind}; use cluster={kind} to submit a job."


def batch_size_problem(
    batch_size: int, devices: int, name: str = "devices", key: str = "data.batch_size"
) -> str:
    """Return why a global batch can't be shared evenly, with the nearest size that can."""
    if not batch_size % devices:
        return ""
    nearest = max(1, round(batch_size / devices)) * devices
    return (
        f"{key}={batch_size} is the global batch and can't be shared evenly by {devices} {name}; "
        f"use {key}={nearest}."
    )
