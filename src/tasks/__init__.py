"""Tasks: what a step computes, its loss and metrics, as an ordinary module of each framework.

`lightning` has LightningModules, `keras` functions and classes that return a compiled `keras.Model`. Each file trains on its own, too:
copy it, or let `make new-task NAME=mine` do that. Their network and optimizer come from the sections `model`, `optimizer` and `schedule`.
`configs/task/NAME.yaml` names the module of each framework, and the metrics.
"""
