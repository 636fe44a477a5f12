"""Imports of commands with framework=keras."""

import train_anywhere.features.node
import train_anywhere.monitor.report.page
import train_anywhere.training.keras.run  # noqa: F401
