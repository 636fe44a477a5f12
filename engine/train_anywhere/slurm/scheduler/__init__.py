"""Call the scheduler's commands: `client` submits jobs, `queue` queries, polls and cancels them."""
