"""Save and restore checkpoints: `state` decides when, and what they hold."""
