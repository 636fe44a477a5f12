"""Fixtures for all tests, which the engine brings."""

pytest_plugins = [
    "train_anywhere.testing.plugin",
    "tools.testing.data_files",
    "tools.testing.plugin",
]
