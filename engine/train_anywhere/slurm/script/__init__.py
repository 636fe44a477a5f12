"""Make the batch script: configuration -> `job.make_job` -> `Job` -> `render.render` -> script.

units                parses and checks times, sizes and patterns
clean_environment    the environment of sbatch, without variables that would change the job
accounts             the accounts of the user
"""
