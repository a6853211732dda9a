"""An OpenID Connect provider: discovery, authorization, token endpoint with PKCE, RS256 keys that can rotate.

`claims` go into each ID token over the right ones, None takes one out: that is how tokens come to be wrong.
`user` is the user at the browser; `algorithm` is RS256, or one by which a token is forged.
"""

import asyncio
import base64
import functools
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CLIENT_ID = "millrace"
CLIENT_SECRET = "a secret: with/odd+signs"

_STEP_TIMEOUT_S = 60.0


@dataclass
class OidcProvider:
    """Serves on 127.0.0.1 from a thread of its own until `stop`."""

    user: dict[str, Any] = field(default_factory=lambda: {"sub": "s1", "email": "ann@example.org"})
    claims: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    algorithm: str = "RS256"
    silence_s: float = 0.0
    issuer: str = ""
    asked: list[str] = field(default_factory=list)

    def start(self) -> None:
        self._keys = [_first_key()]
        self._signs_with = self._keys[0]
        self._codes: dict[str, dict[str, str]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_STEP_TIMEOUT_S)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(_STEP_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STEP_TIMEOUT_S)
        self._loop.close()

    def rotate(self) -> None:
        """From now on another key signs; the old one is not published any more."""
        self._signs_with = _new_key()
        self._keys = [self._signs_with]

    def sign_with_a_stranger(self) -> None:
        """With a key that calls itself as the published one does and is another."""
        self._signs_with = RSAKey.generate_key(2048, {"kid": str(self._keys[0].kid), "alg": "RS256"})

    async def _listen(self) -> None:
        app = web.Application(middlewares=[self._record])
        app.router.add_get("/.well-known/openid-configuration", self._discovery)
        app.router.add_get("/authorize", self._authorize)
        app.router.add_post("/token", self._token)
        app.router.add_get("/keys", self._published)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.issuer = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    @web.middleware
    async def _record(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(request.path)
        await asyncio.sleep(self.silence_s)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _discovery(self, _: web.Request) -> web.Response:
        known = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
        }
        return web.json_response(known | self.metadata)

    async def _authorize(self, request: web.Request) -> web.Response:
        """The user agrees at once."""
        asked = dict(request.query)
        if asked.get("client_id") != CLIENT_ID or asked.get("code_challenge_method") != "S256":
            return web.Response(status=400)
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        back = urlencode({"code": code, "state": asked["state"], "iss": self.issuer})
        raise web.HTTPSeeOther(f"{asked['redirect_uri']}?{back}")

    async def _token(self, request: web.Request) -> web.Response:
        """Each code once, for a client with the verifier and the client's secret."""
        form = dict(await request.post())
        asked = self._codes.pop(str(form.get("code")), None)
        if not _is_client(request.headers.get("authorization", "")):
            return web.json_response({"error": "invalid_client"}, status=401)
        challenge = _encoded(hashlib.sha256(str(form.get("code_verifier")).encode()).digest())
        if (
            asked is None
            or asked["code_challenge"] != challenge.decode()
            or asked["redirect_uri"] != form.get("redirect_uri")
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response({"token_type": "Bearer", "access_token": "x", "id_token": self._sign(asked)})

    def _sign(self, asked: dict[str, str]) -> str:
        now_s = int(time.time())
        right = {"iss": self.issuer, "aud": CLIENT_ID, "iat": now_s, "exp": now_s + 300, "nonce": asked["nonce"]}
        claims = right | {"email_verified": True} | self.user | self.claims
        claims = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": self.algorithm, "kid": str(self._signs_with.kid)}
        if self.algorithm == "RS256":
            return jwt.encode(header, claims, self._signs_with)
        return _forged(header, claims, self._signs_with.as_pem(private=False))

    async def _published(self, _: web.Request) -> web.Response:
        return web.json_response(KeySet([*self._keys]).as_dict(private=False))


@contextmanager
def oidc_provider() -> Iterator[OidcProvider]:
    provider = OidcProvider()
    provider.start()
    try:
        yield provider
    finally:
        provider.stop()


@functools.cache
def _first_key() -> RSAKey:
    """Return the key that all providers of this process start with: to make one takes 0.1 s of CPU."""
    return _new_key()


def _new_key() -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": secrets.token_hex(4), "alg": "RS256", "use": "sig"})


def _forged(header: dict[str, str], claims: dict[str, Any], public: bytes) -> str:
    """Tokens that any attacker could make: without a signature, or with the public key as a secret."""
    signed = b".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
    signature = b"" if header["alg"] == "none" else hmac.new(public, signed, hashlib.sha256).digest()
    return (signed + b"." + _encoded(signature)).decode()


def _encoded(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


def _is_client(header: str) -> bool:
    pair = ":".join(urlencode({"": part})[1:] for part in (CLIENT_ID, CLIENT_SECRET))
    return header == "Basic " + base64.b64encode(pair.encode()).decode()
