"""Call the scheduler's commands.

client           submits with sbatch and qsub
job_chain        submits a chain of jobs, or none of it
queue            queries the states of jobs with squeue, sacct, scontrol, qstat; cancels jobs
queue_poller     polls the queue, and tolerates a scheduler that does not answer
ownership        checks that jobs belong to a run folder
"""
