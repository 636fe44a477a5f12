"""Build data and model without training, so that libraries download their files."""

from train_anywhere.config.checks.targets import task_has_network
from train_anywhere.config.instantiate import instantiate
from train_anywhere.config.schema import Config
from train_anywhere.data.open_data import open_splits
from train_anywhere.launch.rank import import_framework_module
from train_anywhere.training.plan import build_network


def build(config: Config) -> int:
    """Build data, task and network as a rank does, and return the exit code 0."""
    import_framework_module(config.framework, "run")
    whole = task_has_network(config.task, config.framework)
    task = instantiate(config.task, "task", config.framework) if whole else None
    splits = open_splits(config.data, config.framework, config.seed, batch_size=config.data.batch_size)
    for part in (splits.train, task):
        if prepare := getattr(part, "prepare_data", None):
            prepare()
    if not whole:
        build_network(config, splits.facts)
    elif configure := getattr(task, "configure_model", None):
        configure()
    return 0
