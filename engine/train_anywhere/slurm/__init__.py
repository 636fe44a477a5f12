"""The login node's side of a job: from a configuration to a submitted script, and from a run folder to the state of its jobs.

A submission, in order:

1. `launch` checks everything; inside salloc, `allocation` says what there is.
2. `job` resolves every number of the configuration; `rules` compares the job with what the site allows.
3. `render` fills in `templates`: the batch script. `dry_run` prints it and stops here.
4. `submit` makes the run folder; `snapshot` copies the code into it, as `git` lists it and without what is `left_out`.
5. `chain` submits the script through `client` (sbatch, qsub); after a refusal `rollback` removes what was written.

`gpu_hours` counts what a job may cost, `begin` reads when it may start, `following` lets it wait for another run (`after=`).
`evaluation` submits `src/evaluate.py`, `trials` the members of a search (search).

Afterwards `runs` finds submitted runs, `queue` asks for their jobs, `resubmit` and `show_logs` act on them, `waiting` waits.
`new_cluster` writes a preset, `presets` finds the one of this machine, `testbed` is a real Slurm on one machine.

No framework is imported here, because a submission has to start fast on a login node.
"""
