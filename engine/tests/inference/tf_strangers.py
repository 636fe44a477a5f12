"""A user's keras.Model that Keras can make again from its arguments."""

from typing import Any

from engine.tests.training.keras.strangers import OwnStep


class Reopened(OwnStep):
    """Takes what every layer takes."""

    def __init__(self, hidden: int = 8, **options: Any) -> None:
        super().__init__(hidden)
        self.name, self.trainable = options.get("name", self.name), options.get("trainable", True)

    def get_config(self) -> dict[str, Any]:
        return {"hidden": self.hidden.units, "name": self.name, "trainable": self.trainable}
