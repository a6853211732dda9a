"""How a machine becomes a node: it knows the cluster by the token's fingerprint and gets a certificate for it."""

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
# Of what a stranger says.
_REASON_CHARACTERS = 200


async def join(target: Target, token: str, folder: Path, name: str) -> Identity:
    """Get this machine a certificate, kept in `folder`.

    Raises WrongPeer, LinkLost and FrameInvalid where the controller may be elsewhere; PeerRejected, with the
    reason, when the controller itself, proven by the token's fingerprint, refuses.
    """
    pinned, _ = read_token(token)
    authority_pem = await _ask_authority(target, pinned)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=authority_pem)
    channel = await dial(target.host, target.port, context)
    try:
        # Any node's certificate comes from the same authority; the token is for the controller alone.
        if channel.peer is None or channel.peer.role != "gateway":
            raise WrongPeer(f"{target} is no controller of this cluster")
        key = new_key()
        await channel.send(wire.Enrol(token, signing_request(key, name)))
        answer, _ = await channel.receive(ANSWER_TIMEOUT_S)
        if isinstance(answer, wire.Refused):
            raise PeerRejected(answer.reason)
        if not isinstance(answer, wire.Enrolled):
            raise PeerRejected("the controller gave no certificate")
    finally:
        await channel.close()
    identity = save_identity(folder, key, answer.certificate_pem, authority_pem)
    log.info("joined", node_id=node_id_of(key.public_key()), controller=str(target))
    return identity


async def admit_newcomer(channel: Channel, authority: Authority) -> None:
    """The controller's side: one question or one enrolment, then the connection ends."""
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
            await channel.send(wire.Refused("join first: millrace join TOKEN"))


async def _ask_authority(target: Target, pinned: str) -> str:
    """The certificate (PEM) of the cluster's authority, by its fingerprint.

    Nothing is secret yet and nothing is believed yet: whatever else anybody says, even that we are refused, only
    means that the controller is not there. Raises WrongPeer, LinkLost, FrameInvalid.
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
        raise WrongPeer(f"{target} is no controller of a Millrace cluster")
    try:
        authority_pem = _first_certificate(answer.certificate_pem)
    except ValueError:
        raise WrongPeer(f"{target} shows no certificate authority of a Millrace cluster") from None
    if fingerprint(authority_pem) != pinned:
        raise WrongPeer(f"{target} is not the cluster that issued this join token")
    return authority_pem


def _first_certificate(pem: str) -> str:
    """The certificate that `fingerprint` is of; another authority behind it must not be trusted along with it.

    Raises ValueError.
    """
    return x509.load_pem_x509_certificate(pem.encode()).public_bytes(Encoding.PEM).decode()
