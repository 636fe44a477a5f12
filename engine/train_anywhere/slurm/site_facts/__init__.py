"""Compare the facts in a preset with what Slurm reports, and write a patch of the preset."""
