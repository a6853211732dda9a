"""Settings of a config.json: typed, with a family's defaults, and with errors that name the setting."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cluster.errors import ModelInvalid

LAYERS_MAX = 2048
"""The most layers of a card: ten times as many as any model has.

Data for each layer would fill the reader's memory if a card claimed billions.
"""

COUNT_MAX = 2**40
"""More than any count, width or length of a model."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class ModelConfig:
    """Settings under their usual names.

    `aliases` are a family's names for them, the likeliest first; `defaults` are the values of missing settings.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        aliases: Mapping[str, tuple[str, ...]] = _NOTHING,
        defaults: Mapping[str, Any] = _NOTHING,
    ) -> None:
        self._settings = settings
        self._aliases = aliases
        self._defaults = defaults

    def name(self, setting: str) -> str:
        """Return this file's name for a setting."""
        names = self._aliases.get(setting, (setting,))
        return next((name for name in names if name in self._settings), names[0])

    def get(self, setting: str) -> Any:
        """Return the value, which can be null, or the family's default if the file has none."""
        name = self.name(setting)
        return self._settings[name] if name in self._settings else self._defaults.get(setting)

    def count(self, setting: str, default: int | None = None) -> int:
        """Return a positive integer. Raise ModelInvalid for anything else."""
        value = self.get(setting)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelInvalid(f"config.json: {self.name(setting)} must be a positive integer, not {value!r}")
        if value > COUNT_MAX:
            raise ModelInvalid(f"config.json: {self.name(setting)} must be {COUNT_MAX} at most")
        return value

    def layers(self) -> int:
        """Return the number of layers. Raise ModelInvalid if it is impossible."""
        count = self.count("num_hidden_layers")
        if count > LAYERS_MAX:
            name = self.name("num_hidden_layers")
            raise ModelInvalid(f"config.json: {name} must be {LAYERS_MAX} at most, not {count}")
        return count

    def count_or_none(self, setting: str) -> int | None:
        return None if self.get(setting) is None else self.count(setting)

    def number(self, setting: str, default: float | None = None) -> float:
        """Return a number, in the unit of its setting. Raise ModelInvalid for anything else."""
        value = self.get(setting)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ModelInvalid(f"config.json: {self.name(setting)} must be a number, not {value!r}")
        return self._float(setting, value)

    def flag(self, setting: str) -> bool:
        return bool(self.get(setting))

    def numbers(self, setting: str) -> tuple[float, ...]:
        """Return a list of numbers, in the unit of the setting; empty if there is none.

        Raise ModelInvalid for anything else.
        """
        values = self.get(setting) or ()
        if not isinstance(values, list | tuple) or not all(isinstance(v, int | float) for v in values):
            raise ModelInvalid(f"config.json: {self.name(setting)} must be a list of numbers")
        return tuple(self._float(setting, value) for value in values)

    def _float(self, setting: str, value: float) -> float:
        try:
            return float(value)
        except OverflowError:
            raise ModelInvalid(f"config.json: {self.name(setting)} is too large a number") from None

    def part(self, setting: str) -> "ModelConfig":
        """Return an object inside this one; empty if there is none. Raise ModelInvalid for anything else."""
        value = self.get(setting) or {}
        if not isinstance(value, dict):
            raise ModelInvalid(f"config.json: {self.name(setting)} must be an object, not {value!r}")
        return ModelConfig(value)
