"""Checks of a typed configuration: contradictions, targets, strategies, folders."""
