"""Settings of authentication: sign-in through an identity provider, and limits on wrong keys and passwords."""

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.settings.base import Role
from runtime.settings import Section, WholePath

SECRET_BYTES_MIN = 32
HOW_TO_MAKE_ONE = "`openssl rand -hex 32` makes one"


class IdentitySettings(Section):
    secret: SecretStr | None = Field(
        None, description="Secret with which keys are hashed; the same for all gateways of one database."
    )
    secret_file: WholePath | None = Field(
        None, description="File with that secret, mode 0600; by default a file in the data directory."
    )
    wrong_keys_per_minute: int = Field(
        60, ge=1, description="Wrong keys that one address may send in a minute; more get a 429."
    )
    wrong_passwords_per_minute: int = Field(
        10, ge=1, description="Wrong passwords for one user name in a minute; more get a 429."
    )
    session_hours: int = Field(12, ge=1, le=24 * 30, description="Duration of a console session, in hours.")
    public_url: str | None = Field(
        None, description="The gateway's address for browsers, if a proxy is in front of it."
    )
    oidc_issuer: str | None = Field(None, description="OpenID Connect provider; none by default.")
    oidc_client_id: str = Field("", description="This gateway's client ID at the provider.")
    oidc_client_secret: SecretStr | None = Field(None, description="Its client secret; public clients have none.")
    oidc_client_secret_file: WholePath | None = Field(
        None, description="File with the client secret, instead of the secret itself."
    )
    oidc_scopes: tuple[str, ...] = Field(
        ("openid", "email", "profile"), description="Requested scopes; openid is always included."
    )
    oidc_allowed_domains: tuple[str, ...] = Field(
        (), description="Domains of verified e-mail addresses that may sign in; empty for all."
    )
    oidc_auto_create: bool = Field(False, description="Whether an unknown user who signs in becomes a member.")
    oidc_organization: str = Field("home", description="ID of the organization that such a user joins.")
    oidc_role_claim: str = Field("groups", description="Claim of the ID token that oidc_roles maps.")
    oidc_roles: dict[str, Role] = Field(
        {},
        description="Role by value of that claim; if any is set, each sign-in sets the user's role.",
        examples=['{"millrace-admins": "admin"}'],
    )

    @field_validator("public_url")
    @classmethod
    def _is_an_address(cls, text: str | None) -> str | None:
        if text is not None and not text.startswith(("https://", "http://")):
            raise ValueError("must be an address that begins with https:// or http://")
        return text

    @field_validator("secret")
    @classmethod
    def _is_long_enough(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and len(secret.get_secret_value().encode()) < SECRET_BYTES_MIN:
            raise ValueError(f"must have at least {SECRET_BYTES_MIN} bytes; {HOW_TO_MAKE_ONE}")
        return secret

    @model_validator(mode="after")
    def _has_one_secret(self) -> Self:
        if self.secret is not None and self.secret_file is not None:
            raise ValueError("secret and secret_file: set only one of the two")
        return self

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.oidc_issuer is None:
            return self
        if not _is_safe(self.oidc_issuer):
            raise ValueError(
                "oidc_issuer: must be an https:// address without query; http:// only for this machine"
            )
        if not self.oidc_client_id:
            raise ValueError("oidc_client_id: set it together with oidc_issuer")
        if self.oidc_client_secret and self.oidc_client_secret_file:
            raise ValueError("oidc_client_secret and oidc_client_secret_file: set only one of the two")
        return self

    def client_secret(self) -> str | None:
        """Return the secret, read for each use, so a changed file needs no restart. Raises OSError."""
        if self.oidc_client_secret_file is not None:
            return Path(self.oidc_client_secret_file).read_text().strip()
        return self.oidc_client_secret.get_secret_value() if self.oidc_client_secret else None


def _is_safe(issuer: str) -> bool:
    if "?" in issuer or "#" in issuer:
        return False
    local = ("http://127.0.0.1", "http://localhost", "http://[::1]")
    return issuer.startswith("https://") or any(
        issuer == a or issuer.startswith((a + ":", a + "/")) for a in local
    )
