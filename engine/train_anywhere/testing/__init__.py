"""Fixtures for the tests of a project: `plugin`."""
