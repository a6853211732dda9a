"""The users that an identity provider's claims match or create, on both databases."""

from typing import Any

import pytest

from gateway.identity.audit import Filter
from gateway.identity.directory import Directory
from gateway.identity.oidc import Claims
from gateway.identity.provider_answers import LoginRefused
from gateway.identity.sign_in import role_of, sign_in
from gateway.identity.users import User
from gateway.settings import IdentitySettings
from runtime.errors import Conflict

RULES = IdentitySettings(oidc_auto_create=True, oidc_roles={"ops": "admin", "sales": "seller"})


def claims(subject: str = "s1", email: str | None = "ann@example.org", **values: Any) -> Claims:
    return Claims("https://id.example.org", subject, email, None, values)


def test_a_new_user_is_known_from_now_on(directory: Directory) -> None:
    def signed_in(claims: Claims) -> User:
        return sign_in(directory.write, RULES, claims, "10.0.0.1")

    ann = signed_in(claims(groups=["ops"]))
    assert (ann.user_id, ann.role, ann.organization_id) == ("ann@example.org", "admin", "home")
    assert signed_in(claims(email="other@example.org", groups="sales")).role == "seller"
    assert signed_in(claims()).role == "member"
    # An address that another subject has already is no way to become them.
    assert signed_in(claims("s2")).user_id not in (ann.user_id, "owner")
    assert signed_in(claims("s3", None)).user_id.startswith("user-")
    actions = [entry.action for entry in reversed(directory.audit.entries(Filter(target=f"user:{ann.user_id}")))]
    assert actions == ["user.add", "user.role", "user.role", "user.role"]
    directory.users.remove(ann.user_id)
    with pytest.raises(LoginRefused, match="removed"):
        signed_in(claims())


def test_two_who_wait_to_sign_in_have_not_the_same_address(directory: Directory) -> None:
    directory.users.add("ann", email="ann@example.org")
    with pytest.raises(Conflict):
        directory.users.add("eve", email="Ann@example.org")
    assert sign_in(directory.write, IdentitySettings(), claims(), "").user_id == "ann"
    # Who is known by subject from now on is not known by address any more.
    directory.users.add("anna", email="ann@example.org")
    directory.users.remove("anna")
    directory.users.add("another-ann", email="ann@example.org")


def test_the_last_admin_stays_one_whatever_the_provider_says(directory: Directory) -> None:
    directory.users.add("boss", email="b@x.org", role="admin")
    directory.users.set_role("owner", "member")
    assert sign_in(directory.write, RULES, claims(email="b@x.org"), "").role == "admin"


@pytest.mark.parametrize(
    ("groups", "role"),
    [(["sales", "ops"], "admin"), ("sales", "seller"), ([], "member"), (None, "member"), ({"ops": 1}, "member")],
)
def test_the_strongest_role_that_is_given_counts(groups: Any, role: str) -> None:
    assert role_of(RULES, claims(groups=groups)) == role
    assert role_of(IdentitySettings(), claims(groups=groups)) is None
