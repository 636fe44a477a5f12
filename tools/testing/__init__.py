"""Tools for the tests of the template and of the engine: fixtures (`plugin`), and functions that several test files use."""
