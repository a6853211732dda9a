"""Checks of stored data: the data directory and its permissions, secret files, the database, Redis, etcd."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from gateway.cli.doctor.finding import Finding, fail, ok, warn
from gateway.settings import Settings
from gateway.storage import why_unwritable
from runtime.data_folder import DataFolder

_OTHERS = 0o077
_PATIENCE_S = 3.0
_DATABASE_LARGE_BYTES = 20 * 2**30


def look_at_stores(settings: Settings) -> Iterator[Finding]:
    folder = DataFolder(settings.data_dir)
    yield data_folder(folder)
    yield from secret_files(settings)
    yield database(settings, folder)
    if settings.redis.url is not None:
        yield asyncio.run(redis(settings))
    for url in settings.coordination.etcd_urls:
        yield reach("etcd", url, "start it, or correct coordination.etcd_urls")


def data_folder(folder: DataFolder) -> Finding:
    path = folder.path
    if not path.exists():
        return ok("data directory", f"{path} is created at the first start")
    if (trouble := why_unwritable(path)) is not None and os.access(path, os.X_OK):
        return fail("data directory", f"{path}: {trouble}", "free disk space, or mount it writable")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        owner = path.stat().st_uid
        return fail("data directory", f"{path} belongs to user {owner} and is not writable", "change its owner")
    if folder.open_to_others:
        what = f"other users of this machine can read {path}"
        return warn("data directory", what, f"chmod 700 {path}", _closing(path, 0o700))
    return ok("data directory", f"only this user can read {path}")


def secret_files(settings: Settings) -> Iterator[Finding]:
    """Check the permissions of secret files named in the settings."""
    named = (
        ("cloud.keys_file", settings.cloud.keys_file),
        ("selling.tunnel_token_file", settings.selling.tunnel_token_file),
    )
    for setting, path in named:
        if path is None:
            continue
        if not path.is_file():
            yield fail("secrets", f"{setting}: {path} not found", "create it, or correct the setting")
        elif path.stat().st_mode & _OTHERS:
            what = f"{setting}: other users can read {path}"
            yield fail("secrets", what, f"chmod 600 {path}", _closing(path, 0o600))
        else:
            yield ok("secrets", f"{setting}: only this user can read {path}")


def database(settings: Settings, folder: DataFolder) -> Finding:
    """Check that the database answers within seconds, has this version, and is not too large."""
    from sqlalchemy import text
    from sqlalchemy.exc import DBAPIError

    from gateway.database import revisions
    from runtime.database import DatabaseUnsupported, open_engine

    dsn = settings.database.dsn
    if dsn is None and not folder.database.exists():
        return ok("database", "the ledger is created at the first start")
    kind = "SQLite" if dsn is None else "PostgreSQL"
    size_sql = (
        "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        if dsn is None
        else "SELECT pg_database_size(current_database())"
    )
    try:
        engine = open_engine(dsn.get_secret_value() if dsn else folder.dsn, pool_size=1)
    except DatabaseUnsupported as error:
        return fail("database", str(error), "correct database.dsn")
    began_s = time.perf_counter()
    try:
        with engine.connect() as connection:
            size = int(connection.execute(text(size_sql)).scalar() or 0)
            at = str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar())
    except (DBAPIError, UnicodeDecodeError) as error:
        # Not the driver's own message: it may contain the DSN.
        why = type(getattr(error, "orig", error)).__name__
        return fail("database", f"{kind} cannot be used ({why})", "check that it is running and accepts the login")
    finally:
        engine.dispose()
    took_ms = (time.perf_counter() - began_s) * 1000
    return _judged(kind, at, size, took_ms, revisions())


def _judged(kind: str, at: str, size: int, took_ms: float, known: list[str]) -> Finding:
    what = f"{kind} at revision {at}, {size / 2**20:,.1f} MiB, answers in {took_ms:.0f} ms"
    if at not in known:
        return fail("database", what, "a newer Millrace version wrote it: run that version, or restore a backup")
    if at != known[-1]:
        return warn("database", what, f"the next `millrace up` migrates it to {known[-1]}; back it up first")
    if size > _DATABASE_LARGE_BYTES:
        return warn("database", what, "reduce request_log.days_max and request_log.rows_max")
    return ok("database", what)


async def redis(settings: Settings) -> Finding:
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    assert settings.redis.url is not None
    connection: Redis = Redis.from_url(
        settings.redis.url.get_secret_value(), socket_timeout=_PATIENCE_S, socket_connect_timeout=_PATIENCE_S
    )
    began_s = time.perf_counter()
    try:
        await connection.ping()
        version = str((await connection.info("server")).get("redis_version", ""))
    except (RedisError, OSError) as error:
        remedy = "start it, or correct redis.url; until then limits use the last known shares"
        return fail("redis", f"Redis does not answer ({type(error).__name__})", remedy)
    finally:
        await connection.aclose()
    took_s = time.perf_counter() - began_s
    what = f"Redis {version} answers in {took_s * 1000:.0f} ms"
    if took_s / 2 > settings.redis.timeout_s:
        return warn("redis", what, "this exceeds redis.timeout_s: move Redis closer")
    return ok("redis", what)


def reach(area: str, url: str, remedy: str) -> Finding:
    """Check whether a server listens at the address."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    began_s = time.perf_counter()
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=_PATIENCE_S):
            took_ms = (time.perf_counter() - began_s) * 1000
    except OSError as error:
        return fail(area, f"cannot reach {url}: {error.strerror or error}", remedy)
    return ok(area, f"{url} reachable in {took_ms:.0f} ms")


def stale_notice(folder: DataFolder) -> Finding | None:
    """Report a stale notice: a killed gateway leaves running.json behind, and commands would use it."""
    running = folder.read_running()
    if running is None or psutil.pid_exists(int(running["pid"])):
        return None

    def forget() -> str:
        folder.forget_running()
        return "removed running.json"

    what = f"a gateway (pid {running['pid']}) was killed and left running.json"
    return warn("gateway", what, "restart it, or remove the file with --fix", forget)


def _closing(path: Path, mode: int) -> Callable[[], str]:
    def close() -> str:
        path.chmod(mode)
        return f"removed other users' access to {path}"

    return close
