"""What the sections of settings are made of."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


class SettingsInvalid(Exception):
    """A setting is unknown or has a value that cannot be used; the message names it."""


def whole(path: Path) -> Path:
    """As a shell would have meant it, and the same whatever folder the program goes to."""
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(f"{path}: {error}") from None


WholePath = Annotated[Path, AfterValidator(whole)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
