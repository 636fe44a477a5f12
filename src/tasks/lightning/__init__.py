"""Tasks in Lightning."""
