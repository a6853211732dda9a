"""The last minutes as chart rows: tokens per second of each lane, and time to first token. Pure."""

from collections.abc import Sequence

from gateway.telemetry.history import FIRST_TOKEN
from gateway.telemetry.slots import Slot, added, of_all_lanes, percentile

LANES = ("cluster", "pool", "cloud", "market")
# A percentile needs this many slots: on a small gateway a few seconds have one request or none.
TOGETHER = 12

ChartRow = list[float | int | None]


def throughput(
    slots: Sequence[Slot], step_s: int, lanes: Sequence[str], *, is_under_way: bool = False
) -> list[ChartRow]:
    """Return the start of each slot, and the tokens per second of each lane in it.

    While requests are running, the newest slots without tokens may still get some, so they are None.
    """
    rows: list[ChartRow] = []
    has_tokens = not is_under_way
    for slot in reversed(slots):
        has_tokens = has_tokens or bool(slot.tokens)
        rate = [round(slot.tokens.get(lane, 0.0) / step_s, 2) if has_tokens else None for lane in lanes]
        rows.append([slot.number * step_s, *rate])
    rows.reverse()
    return rows


def first_tokens(slots: Sequence[Slot], step_s: int, bounds: Sequence[float]) -> list[ChartRow]:
    """Return the start of each slot, and p50 and p95 in ms over it and the slots before it."""
    counted = [of_all_lanes(slot.spreads, FIRST_TOKEN) for slot in slots]
    rows: list[ChartRow] = []
    window: tuple[int, ...] = ()
    for at, slot in enumerate(slots):
        if counted[at]:
            window = added(window, counted[at])
        if at >= TOGETHER and (gone := counted[at - TOGETHER]):
            window = tuple(now - before for now, before in zip(window, gone, strict=True))
        rows.append([slot.number * step_s, *(_ms(percentile(bounds, window, share)) for share in (0.5, 0.95))])
    return rows


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
