"""The commands of a project: src/*.py and slurm/*.py call `main` or `run` of the module with their name."""

__all__ = ["doctor", "evaluate", "jobs", "new_cluster", "report", "scaling", "testbed", "train"]
