"""Facts about token files that are known before any document is read. Needs only the standard library."""

MANIFEST = "manifest.json"
"""The file that lists the token files in a folder, with sizes and checksums; it is written last."""

BYTES = 256
"""Number of tokens for single bytes, with which any string can be encoded."""


def vocabulary_size(kind: str, vocabulary: int) -> int:
    """Return the number of tokens: all bytes and the end symbol, or the configured `vocabulary`, of which some may be unused."""
    return BYTES + 1 if kind == "bytes" else vocabulary
