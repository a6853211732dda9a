"""The fake behaves as Stripe does where payments rely on it: keys, faults, and webhooks over HTTP."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import stripe

from tests.fakes.stripe.server import API_KEY, StripeServer
from tests.fakes.stripe.webhooks import Delivery, Endpoint


@pytest.fixture
def server() -> Iterator[StripeServer]:
    server = StripeServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(server: StripeServer) -> stripe.StripeClient:
    http = stripe.RequestsClient(timeout=30)
    return stripe.StripeClient(
        API_KEY, base_addresses={"api": server.url}, http_client=http, max_network_retries=0
    )


def test_a_key_has_one_answer_for_one_request(server: StripeServer, client: stripe.StripeClient) -> None:
    first, again = (
        client.v1.customers.create({"email": "ann@example.com"}, {"idempotency_key": "k"}) for _ in range(2)
    )
    assert first.id == again.id
    assert again.last_response is not None
    assert again.last_response.headers["Idempotent-Replayed"] == "true"
    with pytest.raises(stripe.IdempotencyError) as refused:
        client.v1.customers.create({"email": "bob@example.com"}, {"idempotency_key": "k"})
    assert refused.value.http_status == 400


def test_a_key_in_use_is_a_conflict(server: StripeServer, client: stripe.StripeClient) -> None:
    server.faults.order("slow", count=1)
    outcomes: list[Any] = []

    def create() -> None:
        try:
            outcomes.append(client.v1.customers.create({}, {"idempotency_key": "k"}).id)
        except stripe.StripeError as error:
            outcomes.append(error.http_status)

    slow = threading.Thread(target=create)
    slow.start()
    while not server.calls:
        time.sleep(0.01)
    create()
    server.released.set()
    slow.join(60)
    assert outcomes[0] == 409
    assert str(outcomes[1]).startswith("cus_")


@pytest.mark.parametrize(("fault", "made"), [("error_before", 0), ("error_after", 1)])
def test_a_500_stays_the_answer_of_its_key(
    server: StripeServer, client: stripe.StripeClient, fault: Any, made: int
) -> None:
    server.faults.order(fault)
    for _ in range(2):
        with pytest.raises(stripe.APIError):
            client.v1.customers.create({}, {"idempotency_key": "k"})
    assert len(list(server.state.all("customer"))) == made


@pytest.mark.parametrize("fault", ["timeout_before", "timeout_after", "rate_limited"])
def test_what_was_not_answered_is_answered_the_next_time(
    server: StripeServer, client: stripe.StripeClient, fault: Any
) -> None:
    server.faults.order(fault)
    with pytest.raises((stripe.APIConnectionError, stripe.RateLimitError)):
        client.v1.customers.create({}, {"idempotency_key": "k"})
    client.v1.customers.create({}, {"idempotency_key": "k"})
    assert len(list(server.state.all("customer"))) == 1


def test_webhooks_go_over_http_signed_as_stripes_library_checks(server: StripeServer) -> None:
    taken: list[stripe.Event] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            event = stripe.Webhook.construct_event(body, self.headers["Stripe-Signature"], "whsec_x")
            taken.append(event)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return None

    receiver = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=receiver.serve_forever)
    thread.start()
    try:
        endpoint = Endpoint("account", "whsec_x", f"http://127.0.0.1:{receiver.server_port}/")
        event = server.state.emit("customer.created", server.state.make("customer"))
        heard = server.webhooks.waiting[0]
        server.webhooks.waiting = [Delivery(endpoint, heard.event_id, heard.body)] * 2
        assert server.webhooks.deliver() == 2
    finally:
        receiver.shutdown()
        thread.join()
        receiver.server_close()
    assert [one.id for one in taken] == [event["id"]] * 2
