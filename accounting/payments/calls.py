"""Make calls that change something at Stripe: store each with its key, make it, and store its answer, once.

A process may die at any moment. A stored call is then made again with the same key, and Stripe repeats its first
answer. Two cases break that: Stripe forgets a key after a day, and it keeps a 500 as the key's answer whatever the
call did. Then the code searches Stripe for the object, which carries its key as metadata.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from accounting.payments.client import Object, Stripe
from accounting.payments.errors import StripeRefused, StripeUnavailable
from accounting.payments.ledger import OpenSession
from accounting.payments.rows import put_if_new
from accounting.payments.tables import StripeCall

CallFailpoint = Literal["call_stored", "call_made", "call_answered", "event_stored", "event_handled", "row_stored"]
OnCallFailpoint: TypeAlias = Callable[[CallFailpoint], None]

TAG = "millrace"
"""The metadata field that holds a call's key, on everything that we create at Stripe."""

_KEY_LASTS_NS = 20 * 3600 * 10**9
# The resource of a call that is never made.
_NONE = ""
_TRIES = 3
# The filter by which Stripe lists what a call made. Two of the others cost nothing: a customer, an account, a
# link.
_FOUND_BY = {
    "transfers": "transfer_group",
    "refunds": "payment_intent",
    "payment_intents": "customer",
    "checkout.sessions": "customer",
    "payouts": "",
}


def _no_failpoint(_: CallFailpoint) -> None:
    return None


class Calls:
    """Make calls from any thread.

    Args:
        doubt_s: time after a kept 500 until the call is made again, if Stripe has no object of it.
    """

    def __init__(
        self,
        stripe: Stripe,
        write: OpenSession,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        pause_s: float = 0.2,
        doubt_s: float = 600.0,
        failpoint: OnCallFailpoint = _no_failpoint,
    ) -> None:
        self.stripe = stripe
        self.failpoint = failpoint
        self._write = write
        self._clock_ns = clock_ns
        self._pause_s = pause_s
        self._doubt_s = doubt_s

    def make(self, key: str, resource: str, params: Mapping[str, Any], *, account: str = "") -> Object:
        """Return Stripe's answer to this call, made now or at any time before.

        The first call under a key decides its parameters. Later ones only return its result.

        Raises:
            StripeRefused: Stripe refused the call, now or before.
            StripeUnavailable: make the same call again later.
        """
        call = self._stored(key, resource, params, account)
        if call.status == "answered":
            answer: Object = json.loads(call.answer or "{}")
            return answer
        if call.status == "refused":
            refusal = json.loads(call.answer or "{}")
            raise StripeRefused(refusal["code"], refusal["message"])
        self.failpoint("call_stored")
        try:
            answer = self._send(call)
        except StripeRefused as refused:
            self._end(key, "refused", {"code": refused.code, "message": str(refused)})
            raise
        self.failpoint("call_made")
        self._end(key, "answered", answer)
        self.failpoint("call_answered")
        return answer

    def forbid(self, key: str, why: str) -> bool:
        """Prevent a call: a later `make` raises StripeRefused with `why`.

        Return False, and change nothing, if the call may have reached Stripe. The caller must then not assume that
        it had no effect.
        """
        now_ns, refusal = self._clock_ns(), {"code": "forbidden", "message": why}
        with self._write() as session, session.begin():
            row = StripeCall(
                key=key,
                resource=_NONE,
                params="{}",
                status="refused",
                answer=json.dumps(refusal),
                created_ns=now_ns,
                sent_ns=now_ns,
            )
            put_if_new(session, row)
            return session.get_one(StripeCall, key).resource == _NONE

    def is_begun(self, key: str) -> bool:
        """Return whether the call may have reached Stripe.

        If so, the caller must not assume that it had no effect.
        """
        with self._write() as session:
            return session.get(StripeCall, key) is not None

    def _stored(self, key: str, resource: str, params: Mapping[str, Any], account: str) -> StripeCall:
        now_ns = self._clock_ns()
        with self._write() as session, session.begin():
            call = session.get(StripeCall, key)
            if call is None:
                tagged = {**params, "metadata": {**params.get("metadata", {}), TAG: key}}
                row = StripeCall(
                    key=key,
                    resource=resource,
                    params=json.dumps(tagged, sort_keys=True),
                    account=account,
                    created_ns=now_ns,
                    sent_ns=now_ns,
                )
                put_if_new(session, row)
                call = session.get_one(StripeCall, key)
            session.expunge(call)
        return call

    def _send(self, call: StripeCall) -> Object:
        if self._clock_ns() - call.sent_ns > _KEY_LASTS_NS:
            return self._found(call) or self._send_again(call)
        for number in range(_TRIES):
            try:
                return self._create(call)
            except StripeUnavailable as unavailable:
                if unavailable.is_kept:
                    return self._found(call) or self._after_doubt(call, unavailable)
                if number == _TRIES - 1:
                    raise
            time.sleep(self._pause_s * 2**number)
        raise AssertionError("the last try returned or raised")

    def _after_doubt(self, call: StripeCall, unavailable: StripeUnavailable) -> Object:
        if self._clock_ns() - call.sent_ns < self._doubt_s * 1e9:
            raise unavailable
        return self._send_again(call)

    def _send_again(self, call: StripeCall) -> Object:
        """Make the call under the key's next number, which is stored first."""
        with self._write() as session, session.begin():
            stored = session.get_one(StripeCall, call.key, with_for_update=True)
            if stored.attempt == call.attempt:
                stored.attempt += 1
                stored.sent_ns = self._clock_ns()
            call.attempt, call.sent_ns = stored.attempt, stored.sent_ns
        return self._create(call)

    def _create(self, call: StripeCall) -> Object:
        key = call.key if call.attempt == 1 else f"{call.key}.{call.attempt}"
        return self.stripe.create(call.resource, json.loads(call.params), key=key, account=call.account)

    def _found(self, call: StripeCall) -> Object | None:
        by = _FOUND_BY.get(call.resource)
        if by is None:
            return None
        params = json.loads(call.params)
        listed = self.stripe.list(call.resource, {by: params[by]} if by else {}, account=call.account)
        return next((made for made in listed if made["metadata"].get(TAG) == call.key), None)

    def _end(self, key: str, status: str, answer: Object) -> None:
        with self._write() as session, session.begin():
            call = session.get_one(StripeCall, key, with_for_update=True)
            if call.status == "sent":
                call.status, call.answer = status, json.dumps(answer)
