"""Start the three trading gateways in order, and collect what each of them booked."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import DefaultHttpxClient, OpenAI

from accounting.money import format_usd
from demo.market import roles
from demo.market.party import QUIET, Party, Process, in_time, until
from demo.processes import first_line, running
from tests.fakes.cloudflared import Installed

TOP_UP_USD = "25.00"


@dataclass(frozen=True, slots=True)
class Market:
    """The three gateways, the seller's key at the marketplace, and the marketplace's process."""

    marketplace: Party
    seller: Party
    buyer: Party
    sellers_key: str
    marketplace_process: Process

    def trade(self, question: str) -> dict[str, Any]:
        """Buy one streamed answer, and return everything booked and paid because of it."""
        answer = self._ask(question)
        booked = in_time(self.agreed) or self.ledger()
        print(f"ledger: {_amounts(booked)}")
        is_one_sum = len(set(booked.values())) == 1 and booked["marketplace"] > 0
        payout = self._pay_out() if is_one_sum else None
        amounts = {name: format_usd(nano) for name, nano in booked.items()}
        return {
            "answer": answer["text"],
            "lane": answer["lane"],
            "prompt_tokens": answer["prompt_tokens"],
            "completion_tokens": answer["completion_tokens"],
            "ledger": amounts,
            "payout": payout,
            "ok": is_one_sum and answer["lane"] == "market" and payout is not None and payout["status"] == "paid",
        }

    def _ask(self, question: str) -> dict[str, Any]:
        print(f"\nyou:   {question}\nmodel: ", end="", flush=True)
        # An environment's proxy cannot reach this machine's loopback, and must not see the key.
        direct = DefaultHttpxClient(trust_env=False)
        client = OpenAI(base_url=f"{self.buyer.root}/v1", api_key=self.buyer.api_key, http_client=direct)
        with client:
            return self._stream(client, question)

    def _stream(self, client: OpenAI, question: str) -> dict[str, Any]:
        raw = client.chat.completions.with_raw_response.create(
            model=roles.MODEL.name,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        text, usage = "", None
        for chunk in raw.parse():
            piece = chunk.choices[0].delta.content if chunk.choices else None
            if piece:
                text += piece
                print(piece, end="", flush=True)
            usage = chunk.usage or usage
        print("\n")
        assert usage
        print(f"route: {raw.headers['x-millrace-reason']}")
        return {
            "text": text,
            "lane": raw.headers["x-millrace-lane"],
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
        }

    def ledger(self) -> dict[str, int]:
        """Return the trade's amount in each of the three ledgers, in nano-USD."""
        return {
            "buyer": self.buyer.nano_on("provider:market:accrued"),
            # The settled amount, in whatever form now: the seller's part, the fee, what was paid out.
            "marketplace": self.marketplace.nano_through("clearing:market"),
            "seller": self.seller.nano_on("income:market_sales"),
        }

    def agreed(self) -> dict[str, int] | None:
        """Return the three sums once they are equal."""
        booked = self.ledger()
        return booked if booked["marketplace"] and len(set(booked.values())) == 1 else None

    def _pay_out(self) -> dict[str, str]:
        """Pay out all whole cents that the seller has earned, through Stripe."""
        key, marketplace = self.sellers_key, self.marketplace
        payable_nano = until("maturing", lambda: marketplace.nano_on("seller:sam:payable"))
        marketplace.as_user(key, "POST", "/accounting/v1/sellers/onboard")
        until("joining Stripe", lambda: marketplace.as_user(key, "GET", "/accounting/v1/sellers/me")["ready"])
        cents = payable_nano // 10**7
        made = marketplace.as_user(key, "POST", "/accounting/v1/payouts", amount=format_usd(cents * 10**7))

        def paid() -> dict[str, str] | None:
            found = marketplace.as_user(key, "GET", f"/accounting/v1/payouts/{made['id']}")
            is_done = found["status"] in ("paid", "failed")
            return {"amount": found["amount"], "status": found["status"]} if is_done else None

        payout = until("the payout", paid)
        print(f"paid:  {payout['amount']} USD to the seller's bank, as the fake Stripe says: {payout['status']}")
        return payout


@contextmanager
def open_market(folder: Path, *, nodes: int = 2, tunnel: str = "quick") -> Iterator[Market]:
    """Yield a marketplace with a bank, a seller's machine, and a buyer without machines.

    Without a `tunnel` ("none") the seller fetches its work from the marketplace.
    """
    print(f"starting a marketplace, a seller with {nodes} nodes, and a buyer ...", flush=True)
    print("Stripe and cloudflared are stand-ins from tests/fakes: no money, no internet.", file=sys.stderr)
    cloudflared = Installed(folder / "cloudflared")
    port = roles.free_port()
    with ExitStack() as stack:
        stripe = ["tests.fakes.stripe_server", "--gateway", f"http://127.0.0.1:{port}", "--obliging"]
        started = json.loads(first_line(stack.enter_context(running(stripe, {})), "the fake Stripe"))
        settings = roles.marketplace(started["environment"])
        marketplaces = stack.enter_context(
            Process("marketplace", folder / "marketplace", settings, "--port", str(port))
        )
        words = ("--model", str(roles.MODEL), "--nodes", str(nodes), "--port", "0")
        sellers = stack.enter_context(Process("seller", folder / "seller", {}, *words))
        marketplace = marketplaces.party()
        sellers_key, buyers_key = (
            marketplace.new_user("sam", "seller"),
            marketplace.new_user("ben", lanes=["market"]),
        )
        _top_up(marketplace, buyers_key)
        seller = sellers.party()
        # Stop both near the end, so that they stop in parallel: the marketplace after the last sale.
        stack.callback(marketplaces.tell_to_stop)
        selling = QUIET | roles.seller(marketplace.root, sellers_key, cloudflared.path, tunnel)
        agent = stack.enter_context(
            running(["gateway", "sell", "--json", "--data-dir", str(seller.folder)], selling)
        )
        identity = json.loads(first_line(agent, "the seller's agent"))["identity"]
        until("a listing at the marketplace", lambda: _listings(marketplace))
        settings = roles.buyer(marketplace.root, buyers_key, identity)
        buyer = stack.enter_context(Process("buyer", folder / "buyer", settings, "--port", "0")).party()
        # The buyer's own ledger charges its only user.
        buyer.machine("POST", "/accounting/v1/credits", user="owner", amount=TOP_UP_USD, reason="for the demo")
        until("an offer at the buyer", lambda: _offers(buyer))
        stack.callback(agent.terminate)
        yield Market(marketplace, seller, buyer, sellers_key, marketplaces)


def _top_up(marketplace: Party, api_key: str) -> None:
    marketplace.as_user(api_key, "POST", "/accounting/v1/topups", amount=TOP_UP_USD)
    until(
        "the top-up",
        lambda: marketplace.as_user(api_key, "GET", "/accounting/v1/balance")["available"] == TOP_UP_USD or None,
    )


def _listings(marketplace: Party) -> bool:
    """Return whether the marketplace knows a listing; the request is that of a new gateway."""
    reply = marketplace.anonymously("POST", "/market/v1/gossip/digest", summary=["0" * 64] * 64)
    return any(json.loads(record)["kind"] == "listing" for record in reply["records"])


def _offers(buyer: Party) -> bool:
    return bool(buyer.as_user(buyer.api_key, "GET", "/v1/models")["data"])


def _amounts(booked: dict[str, int]) -> str:
    return ", ".join(f"{name} {format_usd(nano)} USD" for name, nano in booked.items())
