"""The project."""

# only keras
import os

# Keras reads its backend from the environment when it is imported, so it is chosen before anything else
os.environ["KERAS_BACKEND"] = "tensorflow"
# end keras
