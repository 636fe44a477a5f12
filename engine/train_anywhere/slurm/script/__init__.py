"""Make the batch script: configuration -> `job.make_job` -> `Job` -> `render.render` -> script.

format_checks        checks the format of times, sizes and patterns; `units` and `begin_time` parse them
clean_environment    the environment of sbatch, without variables that would change the job
gpu_hours            the largest number of GPU hours that a job may use
"""
