"""Data sets of the project: functions that return `Splits`.

`_target_` in configs/data/NAME.yaml names the function, here or anywhere else. `_check_` may name a function that reports what is known
before the data are read: see `checks` and docs/how-to/own-dataset.md.
"""
