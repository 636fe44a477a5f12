"""The corrections that make Horovod 0.28.1 compile with current frameworks, and fix two of its bugs.

Tested with the pinned frameworks (CPU) on Python 3.11 with g++ 12, CMake 3.25 and Open MPI 4.1.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from train_anywhere.errors import ProjectError


class BuildError(ProjectError):
    """Horovod could not be built; the message gives the reason and what to install."""


@dataclass(frozen=True)
class Correction:
    """A replacement of the string `old` by `new` in one file of the sources, and the reason."""

    path: str
    old: str
    new: str
    why: str


CORRECTIONS = (
    Correction(
        "CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        "set(CMAKE_CXX_STANDARD 17)",
        "torch >= 2.1 has C++17 in its headers",
    ),
    Correction(
        "horovod/torch/CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        "set(CMAKE_CXX_STANDARD 17)",
        "torch >= 2.1 has C++17 in its headers",
    ),
    Correction(
        "horovod/tensorflow/xla_mpi_ops.cc",
        "\n#if TENSORFLOW_VERSION >= 2006000000\n",
        "\n#if 0\n",
        "the XLA operations (GPU only, off by default) include headers that TensorFlow no longer ships",
    ),
    Correction(
        "horovod/common/gloo/gloo_controller.cc",
        "global_ranks_.reserve(size_)",
        "global_ranks_.resize(size_)",
        "with Gloo the list of ranks stayed empty, so the stall inspector never named a missing rank",
    ),
    Correction(
        "horovod/common/gloo/gloo_context.cc",
        "  assert(global_context.IsEnabled());\n",
        "  assert(global_context.IsEnabled());\n  gloo_iface_ = global_context.gloo_iface_;\n",
        "HOROVOD_GLOO_IFACE was not used after the first connections, so Horovod aborts on a node that can't "
        "resolve its own name",
    ),
    Correction(
        "horovod/tensorflow/mpi_ops.cc",
        "\nGpuStreamHandle AsGpuStreamValue(Stream* stream);\n",
        "\ntemplate <class S> inline GpuStreamHandle AsGpuStreamValue(S* s) {\n"
        "  return static_cast<GpuStreamHandle>(s->platform_specific_handle().stream);\n}\n",
        "GPU builds only: TensorFlow 2.21 removed AsGpuStreamValue",
    ),
)


def digest() -> str:
    """Return 8 hex digits that change with the corrections, so that wheels with other corrections are not reused."""
    strings = [string for c in CORRECTIONS for string in (c.path, c.old, c.new)]
    return sha256("\0".join(strings).encode()).hexdigest()[:8]


def apply_corrections(sources: Path, corrections: tuple[Correction, ...] = CORRECTIONS) -> None:
    """Apply the corrections to the unpacked sources. Raises BuildError unless each one matches exactly once."""
    for c in corrections:
        file = sources / c.path
        text = file.read_text() if file.is_file() else ""
        if text.count(c.old) != 1:
            raise BuildError(
                f"A correction of Horovod's sources ({c.why}) matches {text.count(c.old)} times in {c.path} "
                "instead of once: the archive is another version, or was changed already."
            )
        file.write_text(text.replace(c.old, c.new))
