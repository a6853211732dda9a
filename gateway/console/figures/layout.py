"""Layout of the picture's machines and links: rows that alternate direction, or one column. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.control.topology import Topology
from cluster.models.model_card import ModelCard
from gateway.console.figures.picture import PART_KINDS, PartKind, Picture, PicturePart, Tank, Wire, draw

_EDGE = 12
# The link back to the coordinator runs left of everything.
_BUS = 30
_GAP_BESIDE = 20
_TITLE = 34
_INSET = 3
# Every part stays visible, however small it is.
_PART_HEIGHT_MIN = 2.0
_ARROW = 6


@dataclass(frozen=True, slots=True)
class LayoutForm:
    """Dimensions of a drawing, in its own pixels."""

    columns: int
    box_width: int
    box_height: int
    gap_x: int
    gap_y: int
    name_characters: int


WIDE = LayoutForm(columns=4, box_width=172, box_height=176, gap_x=96, gap_y=72, name_characters=17)
TALL = LayoutForm(columns=1, box_width=272, box_height=150, gap_x=0, gap_y=56, name_characters=27)


@dataclass(frozen=True, slots=True)
class Level:
    """A part of a machine's memory as a band of its box."""

    part: PicturePart
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Box:
    """A machine in the picture; all lengths are in pixels."""

    tank: Tank
    name: str
    x: float
    y: float
    width: float
    height: float
    levels: tuple[Level, ...]

    @property
    def middle_x(self) -> float:
        """Horizontal middle, in pixels."""
        return self.x + self.width / 2

    @property
    def middle_y(self) -> float:
        """Vertical middle, in pixels."""
        return self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class LayoutLine:
    """A link: its corner points, the three points of its arrow, and the position of its text."""

    wire: Wire
    points: str
    arrow: str
    words_x: float
    words_y: float
    anchor: str


@dataclass(frozen=True, slots=True)
class Drawing:
    width: float
    height: float
    pipeline: tuple[Box, ...]
    lines: tuple[LayoutLine, ...]
    beside: tuple[Box, ...]
    beside_y: float


@dataclass(frozen=True, slots=True)
class Sketch:
    """One picture drawn for wide pages and for narrow ones."""

    picture: Picture
    wide: Drawing
    tall: Drawing

    @property
    def kinds(self) -> tuple[PartKind, ...]:
        """The kinds of memory present, which the legend explains."""
        found = {part.kind for tank in self.picture.tanks for part in tank.parts}
        return tuple(kind for kind in PART_KINDS if kind in found)


def sketch(topology: Topology, card: ModelCard | None) -> Sketch:
    """Return the sketch that `cluster/picture.html` shows."""
    picture = draw(topology, card)
    return Sketch(picture, place(picture, WIDE), place(picture, TALL))


def place(picture: Picture, form: LayoutForm) -> Drawing:
    """Return everything with its coordinates; the origin is at the top left."""
    left = _BUS if len(picture.pipeline) > 1 else _EDGE
    pipeline = [_box(tank, form, *_snake(at, form, left)) for at, tank in enumerate(picture.pipeline)]
    bottom = max((box.y + box.height for box in pipeline), default=0.0)
    lines = [_line(wire, *pair, form) for wire, pair in zip(picture.wires, _neighbours(pipeline), strict=False)]
    if picture.wires:
        bottom += _TITLE
    beside_y = bottom + (_TITLE if pipeline else _EDGE)
    beside = _beside(picture.beside, form, left, beside_y)
    bottom = max((box.y + box.height for box in beside), default=bottom)
    right = max((box.x + box.width for box in (*pipeline, *beside)), default=float(left))
    return Drawing(right + _EDGE, bottom + _EDGE, tuple(pipeline), tuple(lines), tuple(beside), beside_y - _EDGE)


def _snake(at: int, form: LayoutForm, left: int) -> tuple[float, float]:
    """Alternate the direction of rows, so that neighbours are always adjacent."""
    row, column = divmod(at, form.columns)
    if row % 2:
        column = form.columns - 1 - column
    return left + column * (form.box_width + form.gap_x), _EDGE + row * (form.box_height + form.gap_y)


def _beside(tanks: Sequence[Tank], form: LayoutForm, left: int, top: float) -> list[Box]:
    pitch_x, pitch_y = form.box_width + _GAP_BESIDE, form.box_height + _GAP_BESIDE
    columns = form.columns if form.columns == 1 else form.columns + 1
    return [
        _box(tank, form, left + at % columns * pitch_x, top + at // columns * pitch_y)
        for at, tank in enumerate(tanks)
    ]


def _box(tank: Tank, form: LayoutForm, x: float, y: float) -> Box:
    name = tank.name
    if len(name) > form.name_characters:
        name = name[: form.name_characters - 1] + "…"
    levels = _levels(tank.parts, y + _INSET, form.box_height - 2 * _INSET)
    return Box(tank, name, x, y, form.box_width, form.box_height, levels)


def _levels(parts: Sequence[PicturePart], top: float, height: float) -> tuple[Level, ...]:
    """Return bands from bottom to top that together fill the box."""
    total_bytes = sum(part.size_bytes for part in parts) or 1
    heights = [max(_PART_HEIGHT_MIN, height * part.size_bytes / total_bytes) for part in parts]
    scale = height / (sum(heights) or 1)
    levels, y = [], top + height
    for part, own in zip(parts, heights, strict=True):
        y -= own * scale
        levels.append(Level(part, round(y, 2), round(own * scale, 2)))
    return tuple(levels)


def _neighbours(pipeline: Sequence[Box]) -> list[tuple[Box, Box]]:
    return list(zip(pipeline, [*pipeline[1:], *pipeline[:1]], strict=True))


def _line(wire: Wire, sender: Box, receiver: Box, form: LayoutForm) -> LayoutLine:
    if wire.is_back:
        return _back(wire, sender, receiver)
    if sender.y == receiver.y:
        sign = 1 if receiver.x > sender.x else -1
        begin = sender.x + sender.width if sign > 0 else sender.x
        end = receiver.x if sign > 0 else receiver.x + receiver.width
        y = sender.middle_y
        arrow = _points((end, y), (end - sign * _ARROW, y - _ARROW / 1.5), (end - sign * _ARROW, y + _ARROW / 1.5))
        return LayoutLine(
            wire, _points((begin, y), (end - sign * _ARROW, y)), arrow, (begin + end) / 2, y, "middle"
        )
    # In one column the text is longer than half a box.
    x = sender.middle_x if form.columns > 1 else sender.x + sender.width / 6
    begin, end = sender.y + sender.height, receiver.y
    arrow = _points((x, end), (x - _ARROW / 1.5, end - _ARROW), (x + _ARROW / 1.5, end - _ARROW))
    # Rows turn at the right or left edge: the text goes to the side with room.
    is_right = form.columns > 1 and x > (form.columns - 1) * (form.box_width + form.gap_x) / 2
    words_x, anchor = (x - 10, "end") if is_right else (x + 10, "start")
    return LayoutLine(wire, _points((x, begin), (x, end - _ARROW)), arrow, words_x, (begin + end) / 2, anchor)


def _back(wire: Wire, sender: Box, receiver: Box) -> LayoutLine:
    """Route under the last machine, up the left edge, into the coordinator."""
    x, bottom, bus = sender.middle_x, sender.y + sender.height + _TITLE / 2, _BUS / 2 - 4
    y = receiver.middle_y
    corners = ((x, sender.y + sender.height), (x, bottom), (bus, bottom), (bus, y), (receiver.x - _ARROW, y))
    arrow = _points(
        (receiver.x, y), (receiver.x - _ARROW, y - _ARROW / 1.5), (receiver.x - _ARROW, y + _ARROW / 1.5)
    )
    return LayoutLine(wire, _points(*corners), arrow, bus + 8, bottom + 15, "start")


def _points(*corners: tuple[float, float]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
