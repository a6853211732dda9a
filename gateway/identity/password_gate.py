"""The gate for users with passwords: it limits parallel hashing, and makes clients that keep guessing wait."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from gateway.identity.audit import Actor
from gateway.identity.gate import WrongKeys
from gateway.identity.password_hash import checked_password, hashed, is_outdated, matches
from gateway.identity.passwords import PasswordLink, Passwords
from gateway.identity.users import User
from runtime.errors import KeyInvalid, NotFound, Overloaded

# Each hash takes 32 MiB and a core, which requests need more.
AT_A_TIME = 2
WAITING_MAX = 16

T = TypeVar("T")


class PasswordGate:
    """Admits users by password. One event loop owns it.

    Wrong passwords count against the client's address, together with wrong keys, and against the user name, even
    if no user has this name.
    """

    def __init__(self, passwords: Passwords, wrong: WrongKeys, wrong_of_name: WrongKeys) -> None:
        self._passwords = passwords
        self._wrong = wrong
        self._wrong_of_name = wrong_of_name
        self._room = asyncio.Semaphore(AT_A_TIME)
        self._waiting = 0

    async def admit(self, user_id: str, password: str, address: str) -> User:
        """Return the user with this name and password.

        Raises:
            KeyInvalid: the name or the password is wrong; the error does not say which.
            TooManyWrongKeys: too many were wrong before, from this address or for this name.
            Overloaded: too many users are signing in now.
        """
        user, stored = await self._checked(user_id, password, address)
        if is_outdated(stored):
            renewed = await self._hash(password)
            await asyncio.to_thread(self._passwords.renew, user.user_id, stored, renewed)
        return user

    async def link(self, text: str, address: str) -> PasswordLink:
        """Return the one-time link with this text. Raises NotFound, TooManyWrongKeys."""
        self._wrong.allow(address)
        try:
            return await asyncio.to_thread(self._passwords.link, text)
        except NotFound:
            self._wrong.failed(address)
            raise

    async def choose(self, link: str, password: str, address: str) -> User:
        """Use up a one-time link. Raises RequestInvalid, Overloaded, Conflict, and as `link` does."""
        await self.link(link, address)
        new_hash = await self._hash(checked_password(password))
        return await asyncio.to_thread(self._passwords.choose, link, new_hash, address)

    async def change(self, user_id: str, old: str, new: str, by: Actor, kept_session: str) -> int:
        """Change the password of a user who knows the old one; returns how many other sessions ended.

        Raises:
            KeyInvalid: the old password is wrong.
            RequestInvalid: the new password is not acceptable.
            TooManyWrongKeys, Overloaded: as `admit` does.
            NotFound: the password was changed elsewhere meanwhile.
        """
        checked_password(new, "new")
        _, stored = await self._checked(user_id, old, by.address)
        new_hash = await self._hash(new)
        return await asyncio.to_thread(self._passwords.change, user_id, stored, new_hash, by, kept_session)

    async def _checked(self, user_id: str, password: str, address: str) -> tuple[User, str]:
        self._wrong.allow(address)
        self._wrong_of_name.allow(user_id)
        user, stored = await asyncio.to_thread(self._passwords.stored, user_id)
        is_right = await self._in_turn(lambda: matches(password, stored))
        if user is None or not is_right:
            self._wrong.failed(address)
            self._wrong_of_name.failed(user_id)
            raise KeyInvalid("The user name or the password is wrong.")
        return user, stored

    async def _hash(self, password: str) -> str:
        return await self._in_turn(lambda: hashed(password))

    async def _in_turn(self, work: Callable[[], T]) -> T:
        async with self._turn():
            return await asyncio.to_thread(work)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for a hashing slot. Raises Overloaded if more wait than can be served within seconds."""
        if self._waiting >= WAITING_MAX:
            raise Overloaded("Many users are signing in just now. Try again in a few seconds.")
        self._waiting += 1
        try:
            await self._room.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._room.release()
