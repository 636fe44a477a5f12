"""Contradictions between keys that are fine one by one: a check is a function from the configuration to sentences."""

import re
from collections.abc import Callable

from train_anywhere.config.checks import strategy_table
from train_anywhere.config.checks.batch_norm import sync_batchnorm
from train_anywhere.config.choices import Sgd
from train_anywhere.config.limits import span
from train_anywhere.config.schema import Config

Check = Callable[[Config], list[str]]
"""One sentence for each thing that can't work."""


def cross_checks(config: Config) -> list[str]:
    """Every contradiction between keys that are fine one by one; one sentence each."""
    checks: tuple[Check, ...] = (
        _from_scratch,
        _devices,
        _mps,
        _nesterov,
        _early_stopping,
        _name,
        _strategy,
        _within_node,
        _static_graph,
        _whole_network,
        sync_batchnorm,
    )
    return [problem for check in checks for problem in check(config)]


def _mps(c: Config) -> list[str]:
    t = c.trainer
    if t.accelerator != "mps":
        return []
    wrong = {
        f"framework={c.framework}: use framework=lightning": c.framework != "lightning",
        f"cluster={c.cluster.name}: leave cluster out": c.cluster.scheduler != "none",
        "several devices: use trainer.devices=1": t.devices not in (1, "auto")
        or t.total_devices not in (1, None),
    }
    return [
        f"trainer.accelerator=mps, the GPU of a Mac, does not go with {what}."
        for what, found in wrong.items()
        if found
    ]


def _strategy(c: Config) -> list[str]:
    total, t = c.trainer.total_devices, c.trainer
    devices = total if isinstance(total, int) else t.devices
    return strategy_table.contradictions(c.framework, c.strategy.name, t.most_nodes, devices)


def _within_node(c: Config) -> list[str]:
    total, nodes = c.trainer.total_devices, c.trainer.most_nodes
    within = getattr(c.strategy, "shard_within_node", False)
    if not within or not isinstance(total, int) or total % nodes == 0:
        return []
    return [
        f"strategy.shard_within_node=true splits the model in the same way on each node, and trainer.nodes={nodes} can't have the "
        f"same number each of trainer.total_devices={total}; use trainer.total_devices={-(-total // nodes) * nodes}, or "
        "strategy.shard_within_node=false."
    ]


def _static_graph(c: Config) -> list[str]:
    if not getattr(c.strategy, "static_graph", False) or c.trainer.accumulate_grad_batches == 1:
        return []
    return [
        f"strategy.static_graph=true and trainer.accumulate_grad_batches={c.trainer.accumulate_grad_batches} do not go together: DDP "
        "takes a batch whose gradients are not sent for another graph; use strategy.static_graph=false."
    ]


def _whole_network(c: Config) -> list[str]:
    """What copies the network to several devices of a process, or splits it, can't do all that others can."""
    if c.strategy.name == "dp" and c.trainer.compile:
        return [
            "strategy=dp copies the network to each GPU in each step, and trainer.compile=true compiles it for one; use strategy=ddp, "
            "or trainer.compile=false."
        ]
    if c.strategy.name == "fsdp" and c.trainer.channels_last:
        return [
            "strategy=fsdp splits weights that lie row by row, and trainer.channels_last=true turns those of convolutions; use "
            "strategy=ddp, or trainer.channels_last=false."
        ]
    return []


def _from_scratch(c: Config) -> list[str]:
    if c.from_scratch and c.resume is None:
        return ["from_scratch=true needs resume=RUN; a new run starts from scratch anyway."]
    return []


def _devices(c: Config) -> list[str]:
    t = c.trainer
    if isinstance(t.nodes, str) or isinstance(t.total_devices, str):
        return _range(c)
    if t.devices == "auto" or t.total_devices in (None, t.devices * t.nodes):
        return []
    return [
        f"trainer.devices={t.devices} on each of trainer.nodes={t.nodes} and trainer.total_devices={t.total_devices} contradict each "
        "other; leave one of them out (trainer.devices=auto, trainer.total_devices=null)."
    ]


def _range(c: Config) -> list[str]:
    """What a range of nodes or devices can't be combined with."""
    t = c.trainer
    if not isinstance(t.total_devices, str):
        if t.total_devices is None:
            return []
        return [
            f"trainer.nodes={t.nodes} and trainer.total_devices={t.total_devices} can't both hold; leave out trainer.total_devices, "
            "and say with trainer.devices how many each node has."
        ]
    least, most = span(t.total_devices)
    if t.nodes != 1:
        return [
            f"trainer.nodes={t.nodes} and trainer.total_devices={t.total_devices} can't both hold; leave one of them out."
        ]
    if t.devices == "auto":
        return [
            f"trainer.total_devices={t.total_devices} is a range of nodes that have as many devices each; say how many: "
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


def _nesterov(c: Config) -> list[str]:
    if isinstance(c.optimizer, Sgd) and c.optimizer.nesterov and not c.optimizer.momentum:
        return [
            "optimizer.nesterov=true needs a momentum; use optimizer.momentum=0.9 or optimizer.nesterov=false."
        ]
    return []


def _early_stopping(c: Config) -> list[str]:
    stopping, limit = c.trainer.early_stopping, c.trainer.limit_val_batches
    if stopping.patience is None or limit or c.trainer.fast_dev_run:
        return []
    return [
        f"trainer.early_stopping.patience={stopping.patience} counts validations, and trainer.limit_val_batches={limit} turns "
        "them off; use trainer.limit_val_batches=1.0 or trainer.early_stopping.patience=null."
    ]


def _name(c: Config) -> list[str]:
    if c.name.lower() == "latest":
        return [f"name={c.name} is the name of the link to the newest run; use another one."]
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,99}", c.name):
        return []
    return [
        f"name={c.name!r} can't name a folder and a job: use up to 100 letters, digits and . _ - = + only, "
        "and begin with a letter or digit."
    ]
