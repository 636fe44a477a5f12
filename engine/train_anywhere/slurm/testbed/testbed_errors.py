"""The testbed's error class."""

from train_anywhere.errors import ProjectError


class TestbedError(ProjectError):
    """The testbed can't do what was requested. The message names what to do instead."""

    __test__ = False  # the name starts like a test class; pytest should not look into it
