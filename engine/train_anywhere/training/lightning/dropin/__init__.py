"""Models, callbacks and loggers that the user wrote for the framework, used unchanged."""
