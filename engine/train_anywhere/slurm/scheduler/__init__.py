"""Calls of the scheduler.

client           sbatch and qsub
jobs_in_turn     submits a chain of jobs, or none
queue            the states of jobs, by squeue, sacct, scontrol, qstat; cancels jobs
wait_for_jobs    waits for their end, even while the scheduler does not answer
ownership        which jobs belong to a run folder
"""
