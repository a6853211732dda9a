"""Load text/phrases.lists and text/tales.plots: the words and beats that rules choose from."""

from pathlib import Path

TEXT = Path(__file__).parent / "text"


def _load_lists(path: Path) -> dict[str, list[str]]:
    """Parse lists: `name:` begins one, and the indented lines below have its items, separated by bars."""
    joined: dict[str, str] = {}
    name = ""
    for line in path.read_text().splitlines():
        if line.endswith(":") and not line.startswith((" ", "#")):
            name = line[:-1]
            joined[name] = ""
        elif line.startswith(" "):
            joined[name] += " " + line.strip()
    return {name: [item.strip() for item in text.split(" | ")] for name, text in joined.items()}


def _load_plots(path: Path) -> dict[str, list[list[str]]]:
    """Parse plots:

    `[name]` begins one, each line is a beat, and `[[name]]` stands for the beat of another plot.
    """
    plots: dict[str, list[list[str]]] = {}
    beats: list[list[str]] = []
    for line in path.read_text().splitlines():
        if line.startswith("[["):
            beats.append(plots[line[2:-2]][0])
        elif line.startswith("["):
            beats = plots.setdefault(line[1:-1], [])
        elif line and not line.startswith("#"):
            beats.append(line.split(" | "))
    return plots


LISTS = _load_lists(TEXT / "phrases.lists")
BEATS = _load_plots(TEXT / "tales.plots")
FRAME = ("opening", "morning", "meeting", "end")
PLOTS = {name: beats for name, beats in BEATS.items() if name not in FRAME}
