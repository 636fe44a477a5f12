"""Data sets as plain numpy, and the pipelines that feed them to PyTorch and TensorFlow in the same order.

In order: `sets.open_splits` opens the data set that `data=` names (`digits`, `mnist`, `imagefolder`, `synthetic`) as three
`base.ImageSet`s: train, val and test. `order.BatchOrder` says which samples a rank gets in batch b of epoch e: a pure
function of seed, epoch, batch and rank. `torch_loader` and `tf_pipeline` read these samples, in workers or threads,
and yield (image, label, weight); padding has weight 0.
Known without reading data, for checks before a run starts: `batch`, `class_folders`, `idx.read_header`, `mnist_files`.
A new data set: a file here with an `ImageSet`, a case in `sets` and in `shape` of src/launch/ahead.py, its dataclass in
src/config/choices.py, configs/data/NAME.yaml.
"""
