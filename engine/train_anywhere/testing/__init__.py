"""For tests: fixtures (`plugin`), and what several test files compare by."""
