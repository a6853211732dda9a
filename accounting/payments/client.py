"""Wrap Stripe's API in three verbs: create, retrieve, list. They return plain dicts, and every call has a time
limit.

The library is imported at the first call: it takes a second and many megabytes, and most gateways sell nothing. It
does not retry by itself, because its keys would not survive this process.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

from accounting.payments.errors import StripeRefused, StripeUnavailable

Object: TypeAlias = dict[str, Any]

_log = logging.getLogger(__name__)
_PAGE = 100
_LISTED_MAX = 20_000
_MESSAGE_MAX = 120
_FINAL = frozenset({400, 402, 404})
_MISTAKEN = frozenset({400, 401, 403})


def is_live(api_key: str) -> bool:
    """Return whether this key moves real money."""
    return api_key.startswith(("sk_live_", "rk_live_"))


class Stripe:
    """Call one account at Stripe by its secret key. The key alone decides whether money is real.

    Args:
        api_key: a secret or restricted key.
        base_url: where to call instead of Stripe, for tests.
        timeout_s: longest wait for one answer, in seconds.
    """

    def __init__(self, api_key: str, *, base_url: str | None = None, timeout_s: float = 20.0) -> None:
        self.is_live = is_live(api_key)
        self._api_key = api_key
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._services: Any = None
        if not self.is_live:
            _log.warning("STRIPE IS IN TEST MODE: no card is charged, no payout reaches a bank")

    def create(self, resource: str, params: Mapping[str, Any], *, key: str, account: str = "") -> Object:
        """Change something at Stripe under an idempotency key.

        Raises:
            StripeRefused: the call had no effect and will have none.
            StripeUnavailable: the call may have had an effect.
        """
        return self._ask(resource, "create", params, {"idempotency_key": key, **_on(account)})

    def retrieve(self, resource: str, object_id: str, *, expand: Sequence[str] = (), account: str = "") -> Object:
        params = {"expand": list(expand)} if expand else {}
        return self._ask(resource, "retrieve", object_id, params, _on(account))

    def list(self, resource: str, params: Mapping[str, Any], *, account: str = "") -> list[Object]:
        """Return everything that matches, page after page, newest first; at most `_LISTED_MAX`.

        Raises StripeUnavailable if there are more.
        """
        found: list[Object] = []
        query = {**params, "limit": _PAGE}
        while len(found) < _LISTED_MAX:
            page = self._ask(resource, "list", query, _on(account))
            found += page["data"]
            if not page["has_more"]:
                return found
            query["starting_after"] = found[-1]["id"]
        raise StripeUnavailable(f"Stripe lists more than {_LISTED_MAX} {resource}")

    def retrieve_balance(self) -> Object:
        """Return the account's balance: `available` and `pending`, each a list of amounts in cents."""
        return self._ask("balance", "retrieve")

    def retrieve_account(self) -> Object:
        """Return the account to which the key belongs."""
        return self._ask("accounts", "retrieve_current")

    def _ask(self, resource: str, verb: str, *arguments: Any) -> Object:
        import stripe

        service = reduce(getattr, resource.split("."), self._opened())
        try:
            answer: Object = getattr(service, verb)(*arguments).to_dict()
        except stripe.StripeError as error:
            raise _meant(error) from error
        return answer

    def _opened(self) -> Any:
        import stripe

        with self._lock:
            if self._services is None:
                addresses: Any = {"api": self._base_url} if self._base_url else None
                self._services = stripe.StripeClient(
                    self._api_key,
                    base_addresses=addresses,
                    max_network_retries=0,
                    http_client=stripe.RequestsClient(timeout=self._timeout_s),
                ).v1
            return self._services


def _on(account: str) -> dict[str, Any]:
    return {"stripe_account": account} if account else {}


def _meant(error: Any) -> StripeRefused | StripeUnavailable:
    """Tell a refusal from an unknown outcome.

    A key that was used for another call is our own bug, not a refusal.
    """
    kind = type(error).__name__
    message = " ".join(f"{kind}: {error.user_message or error}".split())[:_MESSAGE_MAX]
    if error.http_status in _FINAL and kind != "IdempotencyError":
        return StripeRefused(error.code or kind, message)
    if error.http_status in _MISTAKEN:
        _log.error("Stripe refuses this configuration: %s", message)
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    return StripeUnavailable(message, is_kept=headers.get("idempotent-replayed") == "true")
