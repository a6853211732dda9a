"""What a deployment should be: its model, its name and when it may be unloaded; and the file of those added later."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from cluster.errors import ClusterError
from cluster.models.layer_cost import Precision
from runtime.files import replace_file

DeploymentKind = Literal["chat", "embedding"]

PRIORITY = 50


@dataclass(frozen=True, slots=True)
class DeploymentSpec:
    """A model for callers to ask for by `name`. It is split only if no machine holds it alone.

    `reference` is a folder, a GGUF file or a Hugging Face id. If memory is needed, deployments of a lower `priority`
    are unloaded first. One that has not answered for `idle_s` seconds is unloaded; None keeps it until memory is
    needed. A pinned one is never unloaded by itself.
    """

    name: str
    reference: str
    kind: DeploymentKind = "chat"
    precision: Precision | None = None
    context_tokens: int | None = None
    priority: int = PRIORITY
    idle_s: float | None = None
    is_pinned: bool = False


class _Versioned(msgspec.Struct):
    version: int


class _Stored(_Versioned):
    deployments: list[DeploymentSpec]


_VERSION = 1


class SpecFile:
    """The deployments that were added while the gateway ran. Only one process writes the file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> list[DeploymentSpec]:
        """Return the stored deployments.

        Raise ClusterError with the remedy if the file is damaged or of another version.
        """
        if not self._file.is_file():
            return []
        content = self._file.read_bytes()
        try:
            version = msgspec.json.decode(content, type=_Versioned).version
            if version != _VERSION:
                raise ClusterError(self._refusal(f"has version {version}, this program reads {_VERSION}"))
            return msgspec.json.decode(content, type=_Stored).deployments
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ClusterError(self._refusal(f"is damaged: {error}")) from None

    def write(self, specs: Iterable[DeploymentSpec]) -> None:
        """Store these deployments in place of all others. Raise OSError."""
        replace_file(self._file, msgspec.json.format(msgspec.json.encode(_Stored(_VERSION, list(specs)))))

    def _refusal(self, what: str) -> str:
        return (
            f"{self._file} {what}. Take it from a backup, or delete it and add the models again: it only lists the "
            "models that were added while the gateway ran."
        )
