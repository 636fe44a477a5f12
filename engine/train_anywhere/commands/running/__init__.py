"""Verbs of `jobs.py` for a run that trains now: save, debug, shell, profile, and cancel."""
