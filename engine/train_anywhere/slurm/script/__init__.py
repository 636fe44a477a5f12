"""Make the batch script: configuration -> `make_job` -> `Job` -> `render` -> script."""
