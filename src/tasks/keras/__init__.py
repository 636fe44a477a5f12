"""Tasks for Keras."""
