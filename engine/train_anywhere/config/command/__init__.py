"""The command line: flags and overrides, what Hydra composes, one message for all."""
