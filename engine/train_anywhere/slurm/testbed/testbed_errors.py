"""The one error of the testbed."""

from train_anywhere.errors import ProjectError


class TestbedError(ProjectError):
    """The testbed can't do what was asked; the message says what to do instead."""

    __test__ = False  # the name starts like a test class; pytest should not look into it
