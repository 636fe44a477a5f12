"""Submit a run.

prepare       checks everything, in `start`; shows the dry run
submit        creates the run folder, submits, again too, prints; `rollback` undoes that if the scheduler refuses
snapshot      copies the code: the files that `git` lists, without secrets, data and tests
allocation    detects an allocation (salloc, qsub -I), where the script runs without being submitted
"""
