"""Imports of commands with framework=lightning."""

import train_anywhere.features.node
import train_anywhere.monitor.report.page
import train_anywhere.training.lightning.run  # noqa: F401
