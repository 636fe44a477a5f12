"""Submit, inspect and cancel jobs from the login node, without importing a framework.

submission    check, make the run folder, copy the code, submit, roll back
script        `Job`, the resolved numbers of a batch script; `render` fills in the templates
rules         checks against the limits of a site
scheduler     calls of sbatch, squeue, sacct, scancel and their PBS counterparts
status        `jobs.py status`, `list`, `best`, `logs`
presets       the preset of this machine

The project's slurm/templates/ include `templates/`. The batch script runs programs of `open_mpi` and `ssh_by_srun`.
"""
