"""Errors of a rank that lost another one, with messages as libraries have printed them."""

from train_anywhere.distributed.network.addresses import lost_rank

GLOO = "[/build/third_party/gloo/gloo/transport/tcp/"
LOST = {
    f"{GLOO}pair.cc:537] Read error [127.0.0.1]:64664: Connection reset by peer. This is typically caused by a "
    "remote worker hanging or bugs in the application.": "Read error [127.0.0.1]:64664: Connection reset by peer",
    f"{GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:11178. This is typically": "Connection closed by peer [127.0.0.1]:11178",
    f"{GLOO}unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete": (
        "Timed out waiting 1800000ms for recv operation to complete"
    ),
    "NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited or there was a network error, NCCL version 2.21.5": (
        "remote process exited or there was a network error"
    ),
    "NCCL communicator was aborted on rank 3.": "NCCL communicator was aborted on rank 3",
    "Collective ops is aborted by: Failed to send RPC to coordination service. Either the leader task was "
    "preempted/died/restarted unexpectedly": "Failed to send RPC to coordination service",
}
CAUSES = [
    "nothing in row 42",
    f"{GLOO}device.cc:84] rv != -1. Address family for hostname not supported",
    "NCCL error in: ProcessGroupNCCL.cpp:2251, unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    "CUDA error: an illegal memory access was encountered",
    "Collective ops is aborted by: Shape mismatch in the collective instance 100.",
    "",
]


def test_a_connection_that_broke() -> None:
    assert {message: lost_rank(RuntimeError(message)) for message in LOST} == LOST


def test_anything_else_may_be_a_cause() -> None:
    assert {message: lost_rank(RuntimeError(message)) for message in CAUSES} == dict.fromkeys(CAUSES)
    for kind in (ValueError, OSError, KeyboardInterrupt, type("Mine", (RuntimeError,), {})):
        assert lost_rank(kind(next(iter(LOST)))) is None


def of_library(module: str, message: str) -> Exception:
    kind: type[Exception] = type("LibraryError", (Exception,), {"__module__": module})
    return kind(message)


def test_the_store_of_the_ranks_is_one_of_them() -> None:
    said = "Connection was likely closed. Did the remote server shutdown or crash?"
    assert lost_rank(of_library("torch.distributed", f"store->get('0') got error: {said}")) == said


def test_grpc_below_a_collective() -> None:
    why = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:5: Connection refused"
    message = f"Graph execution error:\n\nCollective ops is aborted by: {why}\nAdditional GRPC error"
    assert lost_rank(of_library("tensorflow.python.framework.errors_impl", message)) == why
