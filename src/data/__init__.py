"""Data sets, and the pipelines that feed them to every framework in the same order.

In order: `sets.open_splits` calls what `data._target_` names, which returns `base.Splits`: train, val and perhaps test, and
facts for the model. `order.BatchOrder` says which rows a rank gets in batch b of epoch e: a pure function of seed, epoch, batch
and rank. The files of a framework, named after it, read these rows, in workers or threads, and yield them with their weights (padding has
weight 0); or, for a module that knows nothing of weights, the bare rows. What someone brings is read alike if it is map-style,
else as it comes.
Known without reading data, for checks before a run starts: `checks` and `text.checks`, by way of `batch`, `class_folders`,
`idx.read_header`, `mnist_files`. A new data set: a function here or anywhere else that returns `Splits`, and configs/data/NAME.yaml,
which names it.
"""
