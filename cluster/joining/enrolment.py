"""Joining a cluster: a machine checks the token's fingerprint and exchanges the token for a certificate."""

import ssl
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from cluster import wire
from cluster.errors import PeerRejected, WrongPeer
from cluster.net.channel import Channel, dial
from cluster.trust.addresses import Target
from cluster.trust.authority import (
    Authority,
    fingerprint,
    new_key,
    node_id_of,
    read_token,
    save_identity,
    signing_request,
)
from cluster.trust.identity import Identity

log = structlog.get_logger(__name__)

ANSWER_TIMEOUT_S = 10.0
# The limit for the reason that an unverified peer sends.
_REASON_CHARACTERS = 200


async def join(target: Target, token: str, folder: Path, name: str) -> Identity:
    """Get a certificate for this machine, and store it in `folder`.

    Raise WrongPeer, LinkLost or FrameInvalid if the controller may be elsewhere. Raise PeerRejected, with the
    reason, if the controller itself refuses, which the token's fingerprint proves.
    """
    pinned, _ = read_token(token)
    authority_pem = await _ask_authority(target, pinned)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=authority_pem)
    channel = await dial(target.host, target.port, context)
    try:
        # Any node's certificate comes from the same authority; only the controller may see the token.
        if channel.peer is None or channel.peer.role != "gateway":
            raise WrongPeer(f"{target} is not a controller of this cluster")
        key = new_key()
        await channel.send(wire.Enrol(token, signing_request(key, name)))
        answer, _ = await channel.receive(ANSWER_TIMEOUT_S)
        if isinstance(answer, wire.Refused):
            raise PeerRejected(answer.reason)
        if not isinstance(answer, wire.Enrolled):
            raise PeerRejected("the controller sent no certificate")
    finally:
        await channel.close()
    identity = save_identity(folder, key, answer.certificate_pem, authority_pem)
    log.info("joined", node_id=node_id_of(key.public_key()), controller=str(target))
    return identity


async def admit_newcomer(channel: Channel, authority: Authority) -> None:
    """Serve a new machine on the controller's side: one question or one enrolment, then the connection ends."""
    message, _ = await channel.receive(ANSWER_TIMEOUT_S)
    match message:
        case wire.AskAuthority():
            await channel.send(wire.Authority(authority.certificate_pem))
        case wire.Enrol(token, request_pem):
            try:
                certificate_pem, node_id = authority.enrol(token, request_pem)
            except PeerRejected as error:
                log.warning("machine refused", peer=channel.address, reason=str(error))
                await channel.send(wire.Refused(str(error)))
                return
            log.info("machine joined", peer=channel.address, node_id=node_id)
            await channel.send(wire.Enrolled(certificate_pem))
        case _:
            log.warning("machine refused", peer=channel.address, reason="it has no certificate of this cluster")
            await channel.send(wire.Refused("this machine has not joined the cluster. Run `millrace join TOKEN`."))


async def _ask_authority(target: Target, pinned: str) -> str:
    """Return the certificate (PEM) of the cluster's authority, which must match the fingerprint.

    Nothing is secret or trusted at this point. Any other answer, even a refusal, only means that the controller is
    not there. Raise WrongPeer, LinkLost or FrameInvalid.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    channel = await dial(target.host, target.port, context)
    try:
        await channel.send(wire.AskAuthority())
        answer, _ = await channel.receive(ANSWER_TIMEOUT_S)
    finally:
        await channel.close()
    if isinstance(answer, wire.Refused):
        raise WrongPeer(f"{target} does not say which cluster it is: {answer.reason[:_REASON_CHARACTERS]}")
    if not isinstance(answer, wire.Authority):
        raise WrongPeer(f"{target} is not a controller of a Millrace cluster")
    try:
        authority_pem = _first_certificate(answer.certificate_pem)
    except ValueError:
        raise WrongPeer(f"{target} shows no certificate authority of a Millrace cluster") from None
    if fingerprint(authority_pem) != pinned:
        raise WrongPeer(f"{target} is not the cluster that issued this join token")
    return authority_pem


def _first_certificate(pem: str) -> str:
    """Return the certificate that `fingerprint` covers, without any further authority behind it.

    A second authority must not be trusted along with the first. Raise ValueError if there is no certificate.
    """
    return x509.load_pem_x509_certificate(pem.encode()).public_bytes(Encoding.PEM).decode()
