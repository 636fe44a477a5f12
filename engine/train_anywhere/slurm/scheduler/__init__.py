"""Call the scheduler's commands.

client           submits with sbatch and qsub: a chain of jobs, or none of it
queue            queries and polls the states of jobs with squeue, sacct, scontrol, qstat; cancels jobs
"""
