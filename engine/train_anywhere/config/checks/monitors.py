"""Which metric says what is best: the task's own, unless the configuration names another one."""

from dataclasses import replace

from train_anywhere.config.checks.metric_names import Mode, better
from train_anywhere.config.schema import Config
from train_anywhere.config.strict import did_you_mean


def with_monitors(config: Config, problems: list[str]) -> Config:
    """The configuration with every monitor and its mode, where the task or the name says them.

    Args:
        problems: receives a sentence for a metric that a native task does not have, and for one of which nobody says what is better.
    """
    task, kept, stopping = config.task, config.checkpoint, config.trainer.early_stopping
    best = kept.monitor or (f"val/{task.headline}" if task.headline else None)
    watched = stopping.monitor or ("val/loss" if "loss" in task.metrics else None)
    if stopping.patience is not None and watched is None:
        problems.append(
            f"trainer.early_stopping.patience={stopping.patience} needs a metric to watch, and the task's are not known before it runs; "
            "use trainer.early_stopping.monitor=NAME."
        )
    early = replace(
        stopping,
        monitor=watched,
        mode=_mode(config, "trainer.early_stopping", watched, stopping.mode, problems),
    )
    return replace(
        config,
        checkpoint=replace(kept, monitor=best, mode=_mode(config, "checkpoint", best, kept.mode, problems)),
        trainer=replace(config.trainer, early_stopping=early),
    )


def _mode(
    config: Config, section: str, monitor: str | None, mode: Mode | None, problems: list[str]
) -> Mode | None:
    if monitor is None:
        return mode
    metrics = config.task.metrics
    known = [f"{part}/{name}" for part in ("train", "val") for name in metrics]
    if metrics and monitor not in known:
        near = did_you_mean(monitor, known) if len(known) > 12 else ""
        problems.append(
            f"{section}.monitor={monitor} is not a known metric; use one of {', '.join(known)}.{near}"
        )
        return mode
    if mode or metrics:
        return mode or metrics[monitor.partition("/")[2]]
    if found := better(monitor):
        return found
    problems.append(
        f"{section}.monitor={monitor} may be better high or low, and its name does not say; add {section}.mode=max or {section}.mode=min."
    )
    return None


def judged_by(config: Config) -> str:
    """Return the line that says which checkpoint is the best; "" where the task is one of this project's, or nothing is measured."""
    kept = config.checkpoint
    if config.task.metrics or kept.monitor is None:
        return ""
    most = "greatest" if kept.mode == "max" else "least"
    return f"the best checkpoint is that with the {most} {kept.monitor} (checkpoint.mode={kept.mode})"
