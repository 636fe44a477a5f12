"""Output to a terminal or a log that can't end a run, and printable strings."""
