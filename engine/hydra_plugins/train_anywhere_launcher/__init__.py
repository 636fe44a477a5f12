"""The launcher of any Hydra program: `hydra/launcher=anywhere`. Hydra accepts only classes defined in hydra_plugins."""

from train_anywhere.plugins import anywhere


class AnywhereLauncher(anywhere.AnywhereLauncher):
    """Submit the members of a sweep as one job array, or a single one as a job."""


anywhere.register(__name__)
