"""What is known of token files before any text is read. The standard library alone."""

MANIFEST = "manifest.json"
"""The file that says what a folder of token files holds; it is written last."""

BYTES = 256
"""Values of a byte: each is a token of its own, so that any text can be written with them."""


def vocabulary_size(kind: str, vocabulary: int) -> int:
    """Tokens are 0 .. this - 1: all bytes and the end of a document; or what was asked for, of which few texts may use less."""
    return BYTES + 1 if kind == "bytes" else vocabulary
