"""The data sets of the data tests."""

from tests.data.conftest import mnist_dir, picture_dir, write_idx

__all__ = ["mnist_dir", "picture_dir", "write_idx"]
