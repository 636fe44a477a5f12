"""What is tried with Keras."""

PARTS = {"resume": 240}
"""The modules, with the seconds after which each is given up."""

NEEDED = ("tensorflow", "keras")
"""Packages without which nothing here can run."""
