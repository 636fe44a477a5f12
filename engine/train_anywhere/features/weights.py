"""`cluster.cache=DIR`: where libraries keep pretrained weights, also without internet."""

from pathlib import Path

from train_anywhere.config.paths import is_on_node
from train_anywhere.features.feature import Check, Feature

FOLDERS = {"HF_HOME": "huggingface", "TORCH_HOME": "torch", "KERAS_HOME": "keras"}
"""Folders below the cache: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables, torch.hub, keras.io."""

OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"), "1")
"""Variables that let libraries use files of the cache without asking the hub for newer ones, which would wait for a timeout."""


class WeightsCache(Feature):
    """Point libraries to one cache, on the login node by `train_anywhere fetch` and in the job."""

    def is_on(self) -> bool:
        """Return whether there is a cache."""
        return self.config.cluster.cache is not None

    def check(self, stage: Check, members: int) -> list[str]:
        """Return a message for a cache that is not a folder, or that only a node has: `train_anywhere fetch` fills it elsewhere."""
        cache = str(self.config.cluster.cache)
        if stage == "any" and Path(cache).exists() and not Path(cache).is_dir():
            return [f"cluster.cache={cache} is not a folder; name another one, or cluster.cache=null."]
        if stage != "any" or not is_on_node(cache):
            return []
        return [
            f"cluster.cache={cache} is a folder of a job's node, and `python -m train_anywhere fetch` fills the cache on the login node; "
            "name one on the shared disk, or cluster.cache=null."
        ]

    def variables(self, results: Path | None = None, code: Path | None = None) -> dict[str, str]:
        """Return the folders of the libraries, and for a training of a job without internet that they look only there."""
        cluster = self.config.cluster
        folders = {name: str(Path(cluster.cache or "", inner)) for name, inner in FOLDERS.items()}
        offline = cluster.scheduler != "none" and not cluster.site.internet and not self.config.program
        return folders | (OFFLINE if offline else {})
