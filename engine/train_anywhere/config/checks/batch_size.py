"""Check that devices can share the global batch evenly."""


def batch_size_problem(batch_size: int, devices: int, name: str = "devices") -> str:
    """Return why a global batch can't be shared evenly, with the nearest size that can; "" if it can.

    Args:
        batch_size: rows of the global batch.
        devices: number of devices, or of other parts, that share it.
        name: what the parts are called, for the message.
    """
    if not batch_size % devices:
        return ""
    nearest = max(1, round(batch_size / devices)) * devices
    return (
        f"data.batch_size={batch_size} is the global batch and can't be shared evenly by {devices} {name}; "
        f"use data.batch_size={nearest}."
    )
