"""Short programs to copy: README.md lists them with their commands."""
