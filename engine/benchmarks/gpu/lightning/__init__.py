"""What is tried with Lightning."""

PARTS = {
    "resume": 150,
    "ranks": 150,
    "kill": 150,
    "stall": 90,
    "shared": 150,
    "tokens": 240,
    "pictures": 240,
}
"""The modules, with the seconds after which each is given up. The first three run side by side, the others alone: they are timed."""

NEEDED = ("torch", "lightning")
"""Packages without which nothing here can run."""
