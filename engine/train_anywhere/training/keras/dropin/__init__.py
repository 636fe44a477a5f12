"""Users' own Keras models and callbacks, used unchanged."""
