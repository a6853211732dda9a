"""The gate: it resolves a token to a caller and makes clients that keep sending wrong tokens wait."""

import asyncio
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from gateway.errors import DATABASE_AWAY, RoleForbids, TooManyWrongKeys
from gateway.identity.caller import Caller
from gateway.identity.keys import Keys
from runtime.errors import KeyInvalid

ADDRESSES_MAX = 10_000
_MINUTE_S = 60.0
# A client with one IPv6 address usually controls the whole prefix.
_IPV6_PREFIX = 64
# Longest wait for the database about a key that was valid a while ago.
_PATIENCE_S = 1.0


class WrongKeys:
    """Counts wrong keys by address. Each address may send `per_minute` at once, and as many a minute after that.

    Beyond ADDRESSES_MAX addresses, it forgets those that were quiet longest. One event loop owns it. `sentence` is
    the error text; it is formatted with the number and the address, or other subject of the count. `clock` gives
    seconds that never go back.
    """

    def __init__(
        self,
        per_minute: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        sentence: str = "More than {} wrong keys or passwords a minute came from {}. Check what you send.",
    ) -> None:
        self._per_minute = per_minute
        self._sentence = sentence
        self._pause_s = _MINUTE_S / per_minute
        self._clock = clock
        # When the count of an address is back to 0; each wrong key adds `_pause_s`.
        self._clear_at_s: OrderedDict[str, float] = OrderedDict()

    def allow(self, address: str) -> None:
        """Raises TooManyWrongKeys."""
        if not self._clear_at_s:
            return
        owed_s = self._clear_at_s.get(_network(address), 0.0) - self._clock()
        wait_s = owed_s - (_MINUTE_S - self._pause_s)
        if wait_s > 1e-9:
            raise TooManyWrongKeys(self._sentence.format(self._per_minute, address), math.ceil(wait_s))

    def failed(self, address: str) -> None:
        network, now_s = _network(address), self._clock()
        self._clear_at_s[network] = max(now_s, self._clear_at_s.get(network, 0.0)) + self._pause_s
        self._clear_at_s.move_to_end(network)
        while len(self._clear_at_s) > ADDRESSES_MAX:
            self._clear_at_s.popitem(last=False)


class Gate:
    """Admits bearer tokens. Wrong keys from the same address do not block a key that was valid a moment ago."""

    def __init__(self, keys: Keys, wrong: WrongKeys) -> None:
        self._keys = keys
        self.wrong = wrong
        self._finding: dict[str, asyncio.Task[Caller | None]] = {}

    async def admit(self, token: str, address: str) -> Caller:
        """Return the caller of a valid token; suspends only if the database has to be queried.

        Raises:
            KeyInvalid: the token is not valid here.
            TooManyWrongKeys: the same address sent too many wrong tokens before.
            RoleForbids: the token is a preemptible request's, which may only ask for completions.
        """
        caller = await self.admit_any(token, address)
        if caller.is_preemptible:
            raise RoleForbids(
                "This key is for preemptible requests, which may only be chat completions and completions."
            )
        return caller

    async def admit_any(self, token: str, address: str) -> Caller:
        """Return the caller as `admit` does, but admit preemptible requests too.

        Raises KeyInvalid for an unknown key.
        """
        if (caller := self._keys.cached(token)) is not None:
            return caller
        if not self._keys.knows(token):
            self.wrong.allow(address)
        found = await self._find(token)
        if found is None:
            self.wrong.failed(address)
            raise KeyInvalid(
                f"The API key {token[:6]}... was not found, or is no longer active. List keys with `millrace key list`."
            )
        return found

    async def _find(self, token: str) -> Caller | None:
        """Query the database once for all requests that wait for the same token.

        While the database does not answer, a key that was valid a while ago stays valid.
        """
        finding = self._finding.get(token)
        if finding is None:
            finding = asyncio.create_task(asyncio.to_thread(self._keys.find, token), name="key lookup")
            self._finding[token] = finding
            finding.add_done_callback(partial(self._found, token))
        # A caller that disconnects does not cancel the lookup for the others.
        await asyncio.wait((finding,), timeout=_PATIENCE_S if self._keys.knows(token) else None)
        problem = finding.exception() if finding.done() else TimeoutError()
        if isinstance(problem, (TimeoutError, *DATABASE_AWAY)) and (caller := self._keys.last_known(token)):
            return caller
        return await asyncio.shield(finding)

    def _found(self, token: str, finding: "asyncio.Task[Caller | None]") -> None:
        self._finding.pop(token, None)
        if not finding.cancelled():
            finding.exception()  # Waiters get the error; retrieve it in case there are none.


def _network(address: str) -> str:
    """Return the network that an address belongs to; a text that is no address stands for itself."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), _IPV6_PREFIX), strict=False))
