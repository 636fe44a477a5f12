"""The batch script: configuration -> `job.make_job` -> `Job` -> `render.render` -> text.

readable             checks that times, sizes and patterns can be read; `units` and `begin` read them
clean_environment    the environment of sbatch, without variables that would change the job
gpu_hours            what a job may cost
"""
