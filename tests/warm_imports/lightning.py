"""What commands with framework=lightning import."""

import src.monitor.node
import src.monitor.report.page
import src.training.lightning.run  # noqa: F401
