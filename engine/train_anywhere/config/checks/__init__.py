"""Checks of a typed configuration: contradictions between keys, targets, strategies, batch size, folders."""
