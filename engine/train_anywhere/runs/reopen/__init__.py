"""Reopening a run folder: the frozen configuration, `resume=`, `from_scratch=true`, complete runs, and untrusted values."""
