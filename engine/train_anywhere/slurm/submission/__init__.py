"""Submit a run.

prepare       checks everything, in `start`; shows the dry run
submit        makes the run folder and submits; `rollback` undoes all of it after a refusal
snapshot      copies the code: files that `git` lists, without those of `left_out`
allocation    runs the same script in an allocation (salloc, qsub -I)
resubmit      submits a run again
evaluation    submits `src/evaluate.py`; `trials` the trials of a search
dry_run       what is printed
"""
