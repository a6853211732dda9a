"""Renewal of the short-lived certificates: each one when a third of its time is left, while links go on."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cluster.errors import ClusterError, LinkLost, PeerRejected
from cluster.trust.authority import CLOCK_SKEW, certificate_life, node_id_of, signing_request
from cluster.trust.identity import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, Identity
from runtime.files import replace_file

log = structlog.get_logger(__name__)

# A machine may sleep for days, and the clock that measures waits stops during sleep.
_LOOK_EVERY_S = 3600.0
_RETRY_S = 60.0


async def keep_fresh(identity: Identity, renew: Callable[[], Awaitable[None]]) -> None:
    """Call `renew` whenever the certificate is due, until cancelled. Retry after a failure. Raise LinkLost."""
    while True:
        wait_s = due_s(identity) - time.time()
        if wait_s > 0:
            await asyncio.sleep(min(wait_s, _LOOK_EVERY_S))
            continue
        try:
            await renew()
        except LinkLost:
            raise
        except (ClusterError, OSError) as error:
            log.warning(
                "certificate not renewed", until=str(_certificate(identity).not_valid_after_utc), reason=str(error)
            )
            await asyncio.sleep(_RETRY_S)


def due_s(identity: Identity) -> float:
    """Return when to renew the certificate, in seconds since the epoch: a third of its life is left then.

    An older certificate with a lifetime of a year is due as early as one of today would be.
    """
    certificate = _certificate(identity)
    begin_s = (certificate.not_valid_before_utc + CLOCK_SKEW).timestamp()
    end_s = certificate.not_valid_after_utc.timestamp()
    return begin_s + min(end_s - begin_s, certificate_life().total_seconds()) * 2 / 3


def has_ended(identity: Identity) -> bool:
    """Tell whether the certificate has expired."""
    return _certificate(identity).not_valid_after_utc.timestamp() <= time.time()


def request_again(identity: Identity, name: str) -> str:
    """Return the PEM of a request to certify the key of this identity once more."""
    return signing_request(_key(identity), name)


def keep(identity: Identity, certificate_pem: str) -> None:
    """Store and use a renewed certificate. Raise PeerRejected if it is not for this identity's key."""
    try:
        fresh = x509.load_pem_x509_certificate(certificate_pem.encode())
        authority = x509.load_pem_x509_certificate((identity.folder / AUTHORITY_FILE).read_bytes())
        fresh.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise PeerRejected(f"the renewed certificate cannot be used: {error}") from None
    if fresh.public_key() != _key(identity).public_key():
        raise PeerRejected("the renewed certificate is for another key")
    replace_file(identity.folder / CERTIFICATE_FILE, certificate_pem, mode=0o644)
    node_id = node_id_of(_key(identity).public_key())
    log.info("certificate renewed", node_id=node_id, until=str(fresh.not_valid_after_utc))


def _certificate(identity: Identity) -> x509.Certificate:
    return x509.load_pem_x509_certificate((identity.folder / CERTIFICATE_FILE).read_bytes())


def _key(identity: Identity) -> Ed25519PrivateKey:
    path: Path = identity.folder / KEY_FILE
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    return key
