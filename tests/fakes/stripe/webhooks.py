"""Signed webhooks: kept until delivered, in order or shuffled, once or several times, early or late."""

import hashlib
import hmac
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tests.fakes.stripe.state import Object

Post: TypeAlias = Callable[["Endpoint", bytes, str], int]


@dataclass(frozen=True)
class Endpoint:
    """Where events go: the platform's own to one, connected accounts' to another, each with its own secret."""

    name: str
    secret: str
    url: str = ""


@dataclass(frozen=True)
class Delivery:
    endpoint: Endpoint
    event_id: str
    body: bytes


def sign(body: bytes, secret: str, *, at_s: float | None = None) -> str:
    """Return the header that proves a body to be Stripe's, signed at a time (now)."""
    at = int(time.time() if at_s is None else at_s)
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def post_http(endpoint: Endpoint, body: bytes, signature: str) -> int:
    headers = {"Stripe-Signature": signature, "Content-Type": "application/json"}
    request = urllib.request.Request(endpoint.url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


class Webhooks:
    """Listens to the state; events wait here until `deliver`, and again if they got no 200."""

    def __init__(self, endpoints: Mapping[str, Endpoint], clock_s: Callable[[], float] = time.time) -> None:
        self._endpoints = endpoints
        self._clock_s = clock_s
        self.waiting: list[Delivery] = []
        self.delivered: list[Delivery] = []

    def hear(self, event: Object, owner: str | None) -> None:
        endpoint = self._endpoints["account" if owner is None else "connect"]
        self.waiting.append(Delivery(endpoint, event["id"], json.dumps(event, indent=2).encode()))

    def deliver(
        self,
        post: Post = post_http,
        *,
        chance: random.Random | None = None,
        duplicates: float = 0.0,
        kept_back: float = 0.0,
    ) -> int:
        """Post what waits and return how many deliveries were taken.

        With `chance` the order is shuffled, a share is posted twice, and a share stays for another time.
        """
        batch, self.waiting = self.waiting, []
        if chance:
            batch += [again for again in batch if chance.random() < duplicates]
            chance.shuffle(batch)
            self.waiting = [late for late in batch if chance.random() < kept_back]
            batch = [now for now in batch if now not in self.waiting]
        taken = 0
        for delivery in batch:
            if self.post(delivery, post) == 200:
                taken += 1
                self.delivered.append(delivery)
            else:
                self.waiting.append(delivery)
        return taken

    def post(self, delivery: Delivery, post: Post = post_http) -> int:
        """Post one delivery, signed now: also one that was delivered before."""
        return post(
            delivery.endpoint, delivery.body, sign(delivery.body, delivery.endpoint.secret, at_s=self._clock_s())
        )
