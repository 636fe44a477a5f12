"""Tools for tests: fixtures (`plugin`), and functions that several test files use."""
