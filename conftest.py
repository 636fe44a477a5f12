"""Fixtures for all tests, which the engine brings."""

pytest_plugins = [
    "train_anywhere.testing.plugin",
    "train_anywhere.testing.data_files",
    "tools.testing.plugin",
]
