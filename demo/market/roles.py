"""Define the settings of the three gateways: usual ones, except for prices that amount to whole cents."""

import hashlib
import json
import socket
from pathlib import Path

MODEL = Path(__file__).parents[1] / "model"
PROMPT_USD_PER_MTOK = "200"
COMPLETION_USD_PER_MTOK = "1000"
"""A thousand times the price of such a model: Stripe pays out whole cents, and there is only one answer."""
FEE_BPS = 500


def marketplace(stripe: dict[str, str]) -> dict[str, str]:
    return {
        "MILLRACE_MARKETPLACE__ENABLED": "true",
        "MILLRACE_MARKETPLACE__FEE_BPS": str(FEE_BPS),
        # With these, earnings can be paid out at once.
        "MILLRACE_MARKETPLACE__MATURITY_DAYS_NEW": "0",
        "MILLRACE_MARKETPLACE__MATURITY_DAYS": "0",
        "MILLRACE_MARKETPLACE__RESERVE_BPS": "0",
        "MILLRACE_MARKETPLACE__TICK_S": "0.5",
        "MILLRACE_MARKETPLACE__ALLOWS_LOOPBACK": "true",
        "MILLRACE_METERING__TOKENIZERS": _tokenizers(),
        "MILLRACE_PAYMENTS__TICK_S": "0.2",
        "MILLRACE_PAYMENTS__ACCOUNT_REST_H": "0",
        "MILLRACE_PAYMENTS__PAYOUT_MIN_USD": "0.01",
        **stripe,
    }


def seller(marketplace_url: str, marketplace_key: str, cloudflared: Path, tunnel: str) -> dict[str, str]:
    model = {
        "model": MODEL.name,
        "tokenizer": str(MODEL / "tokenizer.json"),
        "prompt_usd_per_mtok": PROMPT_USD_PER_MTOK,
        "completion_usd_per_mtok": COMPLETION_USD_PER_MTOK,
    }
    return {
        "MILLRACE_SELLING__MODELS": json.dumps([model]),
        "MILLRACE_SELLING__MARKETPLACE_URL": marketplace_url,
        "MILLRACE_SELLING__MARKETPLACE_KEY": marketplace_key,
        "MILLRACE_SELLING__PEERS": json.dumps([marketplace_url]),
        "MILLRACE_SELLING__QUEUE_EMPTY_MINUTES": "0",
        "MILLRACE_SELLING__SUBMIT_S": "1",
        "MILLRACE_SELLING__TUNNEL": tunnel,
        "MILLRACE_SELLING__CLOUDFLARED": str(cloudflared),
        "MILLRACE_SELLING__ALLOWS_LOOPBACK": "true",
    }


def buyer(marketplace_url: str, marketplace_key: str, seller: str) -> dict[str, str]:
    return {
        "MILLRACE_POLICY__LANES": json.dumps(["market"]),
        "MILLRACE_MARKET__BUY_FOR": json.dumps(["public"]),
        "MILLRACE_MARKET__MARKETPLACE_URL": marketplace_url,
        "MILLRACE_MARKET__MARKETPLACE_KEY": marketplace_key,
        # New sellers get requests of at most a cent, but this one is known.
        "MILLRACE_MARKET__PARTNERS": json.dumps([seller]),
        "MILLRACE_MARKET__ALLOCATION_USD": "5.00",
        "MILLRACE_MARKET__PROMPT_USD_PER_MTOK_MAX": PROMPT_USD_PER_MTOK,
        "MILLRACE_MARKET__COMPLETION_USD_PER_MTOK_MAX": COMPLETION_USD_PER_MTOK,
        "MILLRACE_MARKET__ALLOWS_LOOPBACK": "true",
        "MILLRACE_METERING__TOKENIZERS": _tokenizers(),
    }


def _tokenizers() -> str:
    """Return the setting by which buyer and marketplace count by the model's own tokenizer."""
    path = MODEL / "tokenizer.json"
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return json.dumps({MODEL.name: {"path": str(path), "sha256": sha256}})


def free_port() -> int:
    """Return a free port. Stripe needs the marketplace's address before the marketplace can get Stripe's."""
    with socket.socket() as attempt:
        attempt.bind(("127.0.0.1", 0))
        return int(attempt.getsockname()[1])
