"""Choose how buyers reach this seller by its settings: a tunnel, or work fetched from the marketplace."""

from collections.abc import Callable

from accounting.proofs.signing_key import Signer
from market.network.challenge import is_behind
from market.network.outbound import Outbound
from market.seller.pull import Pull
from market.seller.reach import WayIn
from market.seller.tunnel import Tunnel
from market.seller.tunnel_process import TunnelOptions
from market.settings.seller import SellingSettings
from runtime.settings import SettingsInvalid


def way_in_of(
    settings: SellingSettings,
    service_url: str,
    identity: str,
    signer: Signer,
    outbound: Outbound,
    marketplace: Callable[[], str | None],
) -> WayIn:
    """Return the configured way in; `service_url` is the agent's own port, `http://127.0.0.1:PORT`.

    `marketplace` returns the identity of the marketplace that was contacted, None before.

    Raises:
        SettingsInvalid: no tunnel is configured, and no marketplace to fetch work from.
    """
    if settings.tunnel == "none":
        if settings.marketplace_url is None:
            raise SettingsInvalid(
                "selling.marketplace_url is needed to fetch work without a tunnel. Set it, or use a tunnel."
            )
        return Pull(settings.marketplace_url, identity, signer, outbound, service_url, marketplace)

    async def probe(address: str) -> bool:
        return await is_behind(outbound, address, identity, signer.public_key.hex())

    is_named = settings.tunnel == "named"
    options = TunnelOptions(
        service_url,
        token_file=settings.tunnel_token_file if is_named else None,
        public_url=settings.public_url if is_named else "",
        cloudflared=settings.cloudflared,
        allows_loopback=settings.allows_loopback,
    )
    return Tunnel(options, probe=probe)
