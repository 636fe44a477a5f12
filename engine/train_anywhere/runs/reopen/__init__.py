"""Open a run folder again: its frozen configuration, `resume=`, `from_scratch=true`, a run that is complete."""
