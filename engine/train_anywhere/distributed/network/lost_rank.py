"""Errors of a rank whose cause is the end of another one: a connection between the two broke. Any other error is a cause itself."""

import re

LIBRARIES = (
    "builtins",
    "torch",
    "tensorflow",
)
"""Whose errors these are; what someone else made of one is not taken for it."""

FORMS = (
    # Gloo, between ranks that have met: what it says while they meet may be about this rank's own network
    r"gloo/transport/\S+\] (?P<gloo>(?:Read error|Write error|Connection closed by peer|Timed out waiting).*?)(?:\. |$)",
    # NCCL: ncclRemoteError, or what a watchdog of the framework did after it
    r"(?P<nccl>remote process exited or there was a network error|NCCL communicator was aborted on rank \d+)",
    r"(?P<watchdog>Watchdog caught collective operation timeout)",
    # torch's store, whose server is a rank
    r"(?P<store>Connection was likely closed\. Did the remote server shutdown or crash\?|failed to recv, got 0 bytes)",
    # gRPC below the collectives of tf.distribute, which are also aborted where ranks disagree about a shape
    r"(?P<service>Failed to send RPC to coordination service)",
    r"Collective ops is aborted by: (?P<grpc>.*(?:[Cc]onnection re(?:set|fused)|Socket closed|Broken pipe|GOAWAY|heartbeat).*)",
)


def lost_rank(error: BaseException) -> str | None:
    """What a library says of the connection to another rank that broke; None for an error of any other kind."""
    kind = type(error)
    if kind.__module__.split(".")[0] not in LIBRARIES or not isinstance(error, Exception):
        return None
    if kind.__module__ == "builtins" and kind is not RuntimeError:
        return None
    for form in FORMS:
        if found := re.search(form, str(error), re.MULTILINE):
            return str(found[1]).strip()
    return None
