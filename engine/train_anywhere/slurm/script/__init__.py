"""Make the batch script: configuration -> `make_job` -> `Job` -> `render` -> script.

units                parses and checks times, sizes and patterns
clean_environment    the environment of sbatch, without variables that would change the job; the user's accounts
"""
