"""Submit a run.

prepare       checks everything, in `start`; shows the dry run
submit        creates the run folder, submits, prints; `rollback` undoes that if the scheduler refuses
snapshot      copies the code: the files that `git` lists, without secrets, data and tests
allocation    detects an allocation (salloc, qsub -I), where the script runs without being submitted
resubmit      submits a run again, and the trials of a search
"""
