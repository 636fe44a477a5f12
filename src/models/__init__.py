"""The networks: the same models, by the same names and with the same number of parameters, for both frameworks.

A model is a function that returns a network of its framework, with typed arguments: `configs/model/NAME.yaml` names it
by `_target_` and gives their values; `from_data` in it lists those that the data set knows, such as its `shape` and the
number of `outputs`.
Loss and metrics are the task's (`src/tasks`), training is `engine/train_anywhere/training`.

A new model: a function here or anywhere else, for one framework or both, and its file in `configs/model/`. `tests/models` trains a step
of each choice, and compares the two frameworks by their parameter counts.
"""
