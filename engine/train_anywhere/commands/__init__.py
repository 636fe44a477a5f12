"""The commands of a project: each script in src/ and slurm/ calls `main` or `run` of the module with its name."""

__all__ = ["doctor", "evaluate", "jobs", "new_cluster", "report", "run", "scaling", "testbed", "train"]
