"""What commands with framework=keras import."""

import src.monitor.node
import src.monitor.report.page
import src.training.keras.run  # noqa: F401
