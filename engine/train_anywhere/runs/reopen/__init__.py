"""Reopening a run folder: `resume=`, complete runs, and untrusted values."""
