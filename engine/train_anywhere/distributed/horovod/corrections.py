"""The corrections that make Horovod 0.28.1 compile with today's frameworks, and mend two of its faults.

Seen with the pinned frameworks (CPU) on Python 3.11 with g++ 12, CMake 3.25 and Open MPI 4.1.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from train_anywhere.errors import ProjectError


class BuildError(ProjectError):
    """Horovod could not be built; the message says why and what to install."""


@dataclass(frozen=True)
class Correction:
    """One text, `old`, replaced by `new` in one file of the sources, and why."""

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
        "HOROVOD_GLOO_IFACE was forgotten after the first connections, which aborts where a node can't look "
        "up its own name",
    ),
    Correction(
        "horovod/tensorflow/mpi_ops.cc",
        "\nGpuStreamHandle AsGpuStreamValue(Stream* stream);\n",
        "\ntemplate <class S> inline GpuStreamHandle AsGpuStreamValue(S* s) {\n"
        "  return static_cast<GpuStreamHandle>(s->platform_specific_handle().stream);\n}\n",
        "GPU builds only: TensorFlow 2.21 has no AsGpuStreamValue any more",
    ),
)


def digest() -> str:
    """8 hex digits that change when a correction does: a wheel built with others is not taken for this one."""
    texts = [text for c in CORRECTIONS for text in (c.path, c.old, c.new)]
    return sha256("\0".join(texts).encode()).hexdigest()[:8]


def correct(sources: Path, corrections: tuple[Correction, ...] = CORRECTIONS) -> None:
    """Apply the corrections to the unpacked sources; BuildError when one does not fit exactly one place."""
    for c in corrections:
        file = sources / c.path
        text = file.read_text() if file.is_file() else ""
        if text.count(c.old) != 1:
            raise BuildError(
                f"A correction of Horovod's sources ({c.why}) fits {text.count(c.old)} places of {c.path} "
                "instead of one: the archive is another version, or was changed already."
            )
        file.write_text(text.replace(c.old, c.new))
