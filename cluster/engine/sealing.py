"""The part of a step that only the coordinator and the last stage may read, though it passes through every stage.

Drafts, penalty histories and biases are tokens of a user's prompt or answer. The stages between see activations.
They carry these tokens encrypted, under a key that the controller gives to both ends for one epoch.
"""

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct

from cluster.errors import FrameInvalid
from cluster.wire import OpenSlot, Step

_NONCE_BYTES = 12


class _Content(Struct, array_like=True):
    drafts: list[list[int]]
    opened: list[OpenSlot]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Content)


class Seal:
    """One epoch's key at one end. The batch number is the nonce: no two steps of an epoch share one."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def close(self, step: Step) -> None:
        """Move the step's drafts and opened slots into its encrypted part."""
        if step.drafts or step.opened:
            content = _encoder.encode(_Content(step.drafts, step.opened))
            step.sealed = self._cipher.encrypt(_nonce(step), content, None)
            step.drafts, step.opened = [], []

    def open(self, step: Step) -> None:
        """Decrypt the drafts and opened slots.

        Raise FrameInvalid if the coordinator did not encrypt them for this batch.
        """
        if step.sealed:
            try:
                content = _decoder.decode(self._cipher.decrypt(_nonce(step), step.sealed, None))
            except (InvalidTag, msgspec.DecodeError):
                raise FrameInvalid(f"the sealed part of step {step.batch} was changed on its way") from None
            step.sealed, step.drafts, step.opened = b"", content.drafts, content.opened


def _nonce(step: Step) -> bytes:
    return step.batch.to_bytes(_NONCE_BYTES, "big")
