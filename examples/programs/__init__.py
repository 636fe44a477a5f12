"""Programs that know nothing of this project: docs/how-to/any-program.md."""
