"""Tasks for Lightning."""
