"""Calls of the scheduler: submit, ask for states, wait, and which jobs belong to a run folder."""
