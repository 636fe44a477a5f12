"""Submit a run: checks, code snapshot, run folder, dry run, and rollback if the scheduler refuses."""
