"""Output to a terminal or a log: streams that can't end a run, printable strings, progress in bytes."""
