"""Jobs, seen from the login node. No framework is imported here, because a submission has to start fast.

submission    check, make the run folder, copy the code, submit, roll back
script        `Job`: each number of a batch script; `render` fills in the templates
rules         what a site refuses
scheduler     calls of sbatch, squeue, sacct, scancel and their PBS counterparts
status        `jobs.py status`, `list`, `best`, `logs`
scaling       the timing table
presets       the preset of this machine
testbed       a real Slurm on one machine, for tests

`templates/` is included in the outline of the project's slurm/templates/. `open_mpi` and `ssh_by_srun` are programs of the batch script.
"""
