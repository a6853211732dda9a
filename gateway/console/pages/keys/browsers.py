"""Display names of browsers. Pure. A user agent proves nothing."""

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


def shown_browser(agent: str) -> str:
    """Return a name such as `Firefox on Linux`, with fallbacks for unknown parts."""
    browser = next((name for sign, name in _BROWSERS if sign in agent), "")
    system = next((name for sign, name in _SYSTEMS if sign in agent), "")
    if browser and system:
        return f"{browser} on {system}"
    return browser or (f"Browser on {system}" if system else "Unknown browser")
