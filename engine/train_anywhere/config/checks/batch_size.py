"""Whether devices can share the global batch."""


def uneven_batch(batch_size: int, devices: int, name: str = "devices") -> str:
    """What is wrong with a global batch that can't be shared evenly, with the nearest size that can; "" where it can.

    Args:
        name: of what shares it.
    """
    if not batch_size % devices:
        return ""
    nearest = max(1, round(batch_size / devices)) * devices
    return (
        f"data.batch_size={batch_size} is the global batch and can't be shared evenly by {devices} {name}; "
        f"use data.batch_size={nearest}."
    )
