"""Tasks in Keras."""
