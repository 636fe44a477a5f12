"""The project. Keras reads its backend from the environment when it is imported, so it is chosen before anything else."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
