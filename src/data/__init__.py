"""Data sets of the project: each is a function that returns `Splits` (train, val, perhaps test, and facts for the model).

`data._target_` in configs/data/NAME.yaml names the function, here or anywhere else. `data._check_` may name a function that reports what
is known without reading the data: see `checks` and `text.checks`.
"""
