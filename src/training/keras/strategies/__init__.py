"""From the name of a strategy to the object that shares the work between devices and ranks; `make.py` imports all others."""
