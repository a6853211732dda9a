"""Formats figures for pages: money, sizes, times, counts, ids, names of browsers."""

from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal

from markupsafe import Markup

_NOTHING = Markup("–")
_NANO_PER_CENT = 10**7
_ID_SHOWN = 12
# The first match counts: nearly all browsers also name Safari, and many name Chrome.
_BROWSERS = (
    ("Edg/", "Edge"),
    ("OPR/", "Opera"),
    ("SamsungBrowser/", "Samsung Internet"),
    ("Firefox/", "Firefox"),
    ("FxiOS/", "Firefox"),
    ("CriOS/", "Chrome"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
    ("curl/", "curl"),
    ("python-httpx/", "Python program"),
)
_SYSTEMS = (
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Android", "Android"),
    ("Windows", "Windows"),
    ("CrOS", "ChromeOS"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)


def usd(amount_nano: int | None) -> str:
    """Format nano-USD as dollars and cents; below a cent with four decimals, so that a small price is not zero."""
    if amount_nano is None:
        return _NOTHING
    sign, amount = ("-" if amount_nano < 0 else ""), abs(amount_nano)
    if 0 < amount < 50_000:
        return f"{'> -' if sign else '< '}$0.0001"
    step = Decimal("0.0001") if 0 < amount < _NANO_PER_CENT else Decimal("0.01")
    return f"{sign}${Decimal(amount).scaleb(-9).quantize(step, ROUND_HALF_UP):,}"


def size(size_bytes: float | None) -> str:
    """Format bytes in the largest unit that gives at least 1."""
    if size_bytes is None:
        return _NOTHING
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size_bytes >= unit:
            value = size_bytes / unit
            return f"{value:.1f} {name}" if value < 100 else f"{value:,.0f} {name}"
    return f"{size_bytes:.0f} B"


def when(time_ns: int | None) -> Markup:
    """Format a moment; console.js shows it as a relative time, with the exact time as a tooltip."""
    if not time_ns:
        return _NOTHING
    moment = datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(" ", "milliseconds")
    text = f"{moment[:19]} UTC"
    stamp = f"{moment[:10]}T{moment[11:23]}Z"
    # Live tables have hundreds of these: this takes a fifth of the time of `Markup.format`.
    return Markup(f'<time class="mr-when" datetime="{stamp}" title="{text}">{text}</time>')  # noqa: S704 - digits


def ms(duration_ms: float | None) -> str:
    """Format milliseconds, as seconds or minutes if that is easier to read."""
    if duration_ms is None:
        return _NOTHING
    if duration_ms < 10:
        return f"{duration_ms:.1f} ms"
    if duration_ms < 1000:
        return f"{duration_ms:.0f} ms"
    if duration_ms < 60_000:
        return f"{duration_ms / 1000:.1f} s"
    minutes, seconds = divmod(round(duration_ms / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def count(number: float | None) -> str:
    """Format a number of any unit with thousands separators."""
    if number is None:
        return _NOTHING
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:,.1f}"


def short_id(text: str | None) -> Markup:
    """Shorten an id; the full id is a tooltip."""
    if not text:
        return _NOTHING
    shown = text if len(text) <= _ID_SHOWN + 2 else f"{text[:_ID_SHOWN]}…"
    return Markup('<code class="mr-id" title="{}">{}</code>').format(text, shown)


def browser(agent: str) -> str:
    """Return a browser's name such as `Firefox on Linux`, from a user agent. It proves nothing."""
    name = next((found for sign, found in _BROWSERS if sign in agent), "")
    system = next((found for sign, found in _SYSTEMS if sign in agent), "")
    if name and system:
        return f"{name} on {system}"
    return name or (f"Browser on {system}" if system else "Unknown browser")


FILTERS = {
    "usd": usd,
    "size": size,
    "when": when,
    "ms": ms,
    "count": count,
    "short_id": short_id,
    "browser": browser,
}
