"""The batch script: a configuration becomes a `Job`, and a `Job` becomes text."""
