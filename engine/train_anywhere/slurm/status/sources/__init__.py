"""Where a status comes from: files of the run folder, the scheduler, samples of the nodes."""
