"""The lines that TensorFlow 2.21 prints while it is imported, whatever its log level."""

import re

NOISE = re.compile(r".*(oneDNN custom operations|before absl::InitializeLog).*\n")


def without_noise(stderr: str) -> str:
    """Return stderr without these lines."""
    return NOISE.sub("", stderr)
