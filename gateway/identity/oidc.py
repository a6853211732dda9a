"""OpenID Connect as a relying party: authorization code with PKCE, and an ID token that is checked in full.

Its libraries are imported on the first sign-in: most gateways have no provider, and start faster without them.
"""

import asyncio
import base64
import hashlib
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from gateway.identity.provider_answers import LoginRefused, ProviderDown, fetch
from gateway.settings.identity import IdentitySettings

LOGIN_TIMEOUT_S = 15.0
KEPT_S = 3600.0
CLOCK_SKEW_S = 60
# A token with an unknown key triggers another fetch of the keys, at most once in this time.
REFETCH_S = 5.0

_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The values that identify one browser's sign-in when the provider sends it back."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str


@dataclass(frozen=True, slots=True)
class Claims:
    """The provider's claims about a user. `email` is set only if the provider has verified it."""

    issuer: str
    subject: str
    email: str | None
    name: str | None
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Metadata:
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    algorithms: tuple[str, ...]
    takes_basic: bool
    read_at_s: float


class Provider:
    """The identity provider of the settings; its metadata and keys are kept for an hour."""

    def __init__(self, settings: IdentitySettings) -> None:
        assert settings.oidc_issuer, "there is a provider to speak to"
        self._settings = settings
        self._issuer = settings.oidc_issuer
        self._metadata: _Metadata | None = None
        self._keys: Any = None
        self._keys_at_s = 0.0

    async def begin(self, redirect_uri: str) -> tuple[str, Attempt]:
        """Return the URL to send the browser to, and the attempt to keep until it returns. Raises ProviderDown."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        attempt = Attempt(state, nonce, verifier, redirect_uri)
        async with _bounded():
            metadata = await self._discover()
        query = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(dict.fromkeys(("openid", *self._settings.oidc_scopes))),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": _challenge(attempt.verifier),
            "code_challenge_method": "S256",
        }
        joint = "&" if urlsplit(metadata.authorization_endpoint).query else "?"
        return metadata.authorization_endpoint + joint + urlencode(query), attempt

    async def finish(self, attempt: Attempt, code: str) -> Claims:
        """Return the claims of the user who came back. Raises LoginRefused, ProviderDown."""
        async with _bounded():
            metadata = await self._discover()
            token = await self._exchange(metadata, attempt, code)
            return self._read(await self._verify(metadata, token, attempt.nonce))

    async def _discover(self) -> _Metadata:
        known = self._metadata
        if known and time.monotonic() - known.read_at_s < KEPT_S:
            return known
        found = await fetch("GET", self._issuer.rstrip("/") + "/.well-known/openid-configuration")
        if found.get("issuer") != self._issuer:
            raise ProviderDown("The identity provider's issuer differs from identity.oidc_issuer.")
        offered = found.get("id_token_signing_alg_values_supported") or ["RS256"]
        methods = found.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        self._metadata = _Metadata(
            authorization_endpoint=self._endpoint(found, "authorization_endpoint"),
            token_endpoint=self._endpoint(found, "token_endpoint"),
            jwks_uri=self._endpoint(found, "jwks_uri"),
            algorithms=tuple(name for name in _ALGORITHMS if name in offered),
            takes_basic="client_secret_basic" in methods,
            read_at_s=time.monotonic(),
        )
        return self._metadata

    def _endpoint(self, metadata: dict[str, Any], name: str) -> str:
        """Return an endpoint, which must use TLS if the provider does. Raises ProviderDown."""
        address = metadata.get(name)
        if not isinstance(address, str) or urlsplit(address).scheme not in (
            "https",
            urlsplit(self._issuer).scheme,
        ):
            raise ProviderDown(f"The identity provider has no usable {name}.")
        return address

    async def _exchange(self, metadata: _Metadata, attempt: Attempt, code: str) -> str:
        client_id = self._settings.oidc_client_id
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": attempt.redirect_uri,
            "code_verifier": attempt.verifier,
        }
        try:
            secret = self._settings.client_secret()
        except OSError as error:
            raise ProviderDown(f"identity.oidc_client_secret_file cannot be read: {error.strerror}") from None
        headers = {}
        if secret and metadata.takes_basic:
            # Both parts are form-encoded before they are joined (RFC 6749, 2.3.1).
            pair = ":".join(urlencode({"": part})[1:] for part in (client_id, secret))
            headers["authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        else:
            form |= {"client_id": client_id} | ({"client_secret": secret} if secret else {})
        answer = await fetch("POST", metadata.token_endpoint, form, headers)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise LoginRefused("The identity provider sent no ID token; the scope openid may be missing.")
        return token

    async def _verify(self, metadata: _Metadata, token: str, nonce: str) -> dict[str, Any]:
        """Return the claims of a token that the provider signed for this attempt. Raises LoginRefused."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        try:
            claims = await self._decode(metadata, token)
            registry = jwt.JWTClaimsRegistry(
                leeway=CLOCK_SKEW_S,
                iss={"essential": True, "value": self._issuer},
                aud={"essential": True, "value": self._settings.oidc_client_id},
                sub={"essential": True},
                exp={"essential": True},
                iat={"essential": True},
                nonce={"essential": True, "value": nonce},
            )
            registry.validate(claims)
        except (JoseError, ValueError) as error:
            raise LoginRefused(f"The identity provider's token is not valid here ({_named(error)}).") from None
        party = claims.get("azp", self._settings.oidc_client_id)
        if party != self._settings.oidc_client_id:
            raise LoginRefused("The identity provider's token was made for another client (azp).")
        return claims

    async def _decode(self, metadata: _Metadata, token: str) -> dict[str, Any]:
        """Decode with the cached keys; if that fails, fetch the current keys and decode again."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        keys = await self._key_set(metadata, KEPT_S)
        algorithms = list(metadata.algorithms)
        try:
            return dict(jwt.decode(token, keys, algorithms=algorithms).claims)
        except (JoseError, ValueError):
            newer = await self._key_set(metadata, REFETCH_S)
            if newer is keys:
                raise
            return dict(jwt.decode(token, newer, algorithms=algorithms).claims)

    async def _key_set(self, metadata: _Metadata, age_max_s: float) -> Any:
        from joserfc.jwk import KeySet

        if self._keys is None or time.monotonic() - self._keys_at_s > age_max_s:
            found = await fetch("GET", metadata.jwks_uri)
            try:
                # Skip keys of types that we do not know; they must not fail the sign-in.
                usable = [
                    key for key in found["keys"] if key.get("use", "sig") == "sig" and key.get("kty") != "oct"
                ]
                self._keys = KeySet.import_key_set({"keys": usable})
            except (ValueError, KeyError, TypeError, AttributeError):
                raise ProviderDown("The identity provider's keys cannot be read.") from None
            self._keys_at_s = time.monotonic()
        return self._keys

    def _read(self, claims: dict[str, Any]) -> Claims:
        email, name = claims.get("email"), claims.get("name") or claims.get("preferred_username")
        is_verified = claims.get("email_verified") in (True, "true") and isinstance(email, str)
        return Claims(
            issuer=self._issuer,
            subject=str(claims["sub"]),
            email=email.lower() if is_verified and email else None,
            name=name if isinstance(name, str) else None,
            values=claims,
        )


@asynccontextmanager
async def _bounded() -> AsyncGenerator[None]:
    """Bound all requests of one sign-in step to LOGIN_TIMEOUT_S. Raises ProviderDown."""
    try:
        async with asyncio.timeout(LOGIN_TIMEOUT_S):
            yield
    except TimeoutError:
        raise ProviderDown("The identity provider takes too long. Try again.") from None


def _challenge(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _named(error: Exception) -> str:
    """Return joserfc's short error text, which contains nothing of the token other than a claim's name."""
    claim = getattr(error, "claim", None)
    return f"{getattr(error, 'error', type(error).__name__)}{f': {claim}' if claim else ''}"
