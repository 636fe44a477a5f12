"""Models: the same names and the same number of parameters in both frameworks.

A model is a function with typed arguments that returns a network of its framework. `configs/model/NAME.yaml` names it as `_target_` and
has the values of its arguments; `from_data` lists those that come from the data set, such as `shape` and the number of `outputs`. Loss and
metrics belong to the task (`src/tasks`), training to the engine.

A new model is a function here or anywhere else, for one framework or both, and a file in `configs/model/`. `tests/models` trains one step
of each model and compares the parameter counts of the two frameworks.
"""
