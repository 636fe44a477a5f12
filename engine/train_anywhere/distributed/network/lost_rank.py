"""Recognise errors of a rank whose cause is that another rank exited and the connection between the two broke."""

import re

LIBRARIES = (
    "builtins",
    "torch",
    "tensorflow",
)
"""Packages whose exceptions count; an exception class of another package does not, whatever its message."""

FORMS = (
    # Gloo, after ranks have connected: earlier errors may be about this rank's own network
    r"gloo/transport/\S+\] (?P<gloo>(?:Read error|Write error|Connection closed by peer|Timed out waiting).*?)(?:\. |$)",
    # NCCL: ncclRemoteError, or the framework's watchdog after it
    r"(?P<nccl>remote process exited or there was a network error|NCCL communicator was aborted on rank \d+)",
    r"(?P<watchdog>Watchdog caught collective operation timeout)",
    # torch's store, whose server runs in a rank
    r"(?P<store>Connection was likely closed\. Did the remote server shutdown or crash\?|failed to recv, got 0 bytes)",
    # gRPC below the collectives of tf.distribute; these are also aborted if ranks disagree about a shape
    r"(?P<service>Failed to send RPC to coordination service)",
    r"Collective ops is aborted by: (?P<grpc>.*(?:[Cc]onnection re(?:set|fused)|Socket closed|Broken pipe|GOAWAY|heartbeat).*)",
)


def lost_rank(error: BaseException) -> str | None:
    """Return a library's message about a broken connection to another rank; None for any other error."""
    kind = type(error)
    if kind.__module__.split(".")[0] not in LIBRARIES or not isinstance(error, Exception):
        return None
    if kind.__module__ == "builtins" and kind is not RuntimeError:
        return None
    for form in FORMS:
        if found := re.search(form, str(error), re.MULTILINE):
            return str(found[1]).strip()
    return None
