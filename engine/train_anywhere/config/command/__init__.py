"""The command line: flags and overrides before Hydra, what Hydra composes, and one message for each problem."""
