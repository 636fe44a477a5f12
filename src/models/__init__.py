"""The networks: the same models, by the same names and with the same number of parameters, for both frameworks.

`build_model(model, shape, classes)` of `lightning/` or `keras/` turns the `model` part of the configuration into a network from images
to logits; loss and metrics are the task's (`src/tasks`), training is `src/training`.

A new model: one file in `lightning/` or `keras/` (or both) with a function, one `case` in `build_model` there, its dataclass in
`src/config/choices.py`, and its defaults in `configs/model/`. `tests/models` compares the two by their parameter counts.
"""
