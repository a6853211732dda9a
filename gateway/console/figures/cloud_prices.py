"""Cloud prices of models that local machines serve, as far as a price is known."""

from collections.abc import Iterable, Mapping

from accounting.metering.prices import CloudPrices
from accounting.money import Price
from gateway.lanes.base import Lane
from gateway.settings import LaneName


class CloudEquals:
    """Prices of the cloud model of the same name, and of the model that the settings compare it with.

    The latter is a configured cloud model's name, or litellm's name of a model in the providers' price list.
    """

    def __init__(self, lanes: Mapping[LaneName, Lane], compared_with: Mapping[str, str]) -> None:
        self._cloud = lanes.get("cloud")
        self._compared_with = compared_with
        self._listed: dict[str, Price | None] = {}

    def prices(self, models: Iterable[str]) -> dict[str, list[Price]]:
        """Return the known prices of each model. Reads the providers' price list, a file, when first needed."""
        return {model: self._of(model) for model in models}

    def _of(self, model: str) -> list[Price]:
        known = self._offered(model)
        if other := self._compared_with.get(model):
            listed = None if (offered := self._offered(other)) else self._in_list(other)
            known += offered + ([listed] if listed else [])
        return known

    def _offered(self, name: str) -> list[Price]:
        offers = self._cloud.offers(name) if self._cloud else []
        return [offer.price.price for offer in offers if offer.price is not None]

    def _in_list(self, name: str) -> Price | None:
        if name not in self._listed:
            try:
                entry = CloudPrices.installed().find(name)
            except ModuleNotFoundError:
                entry = None
            self._listed[name] = entry.price if entry else None
        return self._listed[name]
