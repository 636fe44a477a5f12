"""Submit a run.

prepare       checks everything, in `start`; shows the dry run
submit        creates the run folder and submits; `rollback` undoes that if the scheduler refuses
snapshot      copies the code: the files that `git` lists, without those of `exclusions`
allocation    detects an allocation (salloc, qsub -I), where the script runs without being submitted
resubmit      submits a run again
evaluation    submits `src/evaluate.py`; `trials` submits the trials of a search
dry_run       formats what a dry run and a submission print
"""
