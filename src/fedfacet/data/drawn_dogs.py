"""Drawing dogs in places, each from its own random stream."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Floats = NDArray[np.float32]
Points = NDArray[np.float64]
Colour = tuple[float, float, float]
# A polygon, shape (points, 2) with x to the right and y down, and its colour, or what the coat's is multiplied with.
Part = tuple[Points, Colour | float]


class _Build(NamedTuple):
    """A breed's typical proportions, as multiples of the depth of its trunk."""

    length: float  # of the trunk
    leg: float  # of the legs below the trunk
    neck: float  # how far the head is carried above the back
    head: float  # radius of the skull
    snout: float  # its length
    jaw: float  # half the depth of the snout
    ear: str  # "hanging", "folded" or "erect"
    ear_length: float
    tail: float  # its length
    tail_width: float  # at its root
    bib: float  # probability of a white chest and white feet
    coats: tuple[Colour, ...]  # equally likely; breeds share most of them


_BLACK, _CHOCOLATE, _RED = (52, 48, 48), (98, 66, 46), (158, 92, 50)
_YELLOW, _FAWN, _WHITE = (214, 178, 122), (190, 146, 100), (226, 218, 206)
_COATS = (_BLACK, _CHOCOLATE, _RED, _YELLOW, _FAWN, _WHITE)
_BUILDS = {
    "labrador": _Build(2.2, 0.85, 0.45, 0.36, 0.42, 0.19, "folded", 0.42, 0.95, 0.11, 0.0, (_YELLOW, _CHOCOLATE, _BLACK)),
    "dachshund": _Build(2.9, 0.40, 0.30, 0.33, 0.56, 0.14, "hanging", 0.66, 1.10, 0.07, 0.0, (_RED, _CHOCOLATE, _BLACK)),
    "bulldog": _Build(1.6, 0.50, 0.10, 0.50, 0.16, 0.30, "folded", 0.24, 0.14, 0.10, 0.4, (_WHITE, _FAWN, _RED)),
    "corgi": _Build(2.5, 0.38, 0.40, 0.37, 0.36, 0.16, "erect", 0.52, 0.30, 0.20, 0.9, (_RED, _FAWN, _BLACK)),
}


def draw_dog(breed: str, location: str, image_size: int, draw: np.random.Generator) -> NDArray[np.uint8]:
    """Draw one image, RGB of shape (S, S, 3).

    Args:
        breed: one of ``BREEDS``.
        location: one of ``LOCATIONS``.
        image_size: S, in pixels, 8 or larger.
        draw: decides everything else; all but the pixel noise comes out alike at every ``image_size``.
    """
    image = _PLACES[location](image_size, draw)
    coat, cover, shadow = _dog(_BUILDS[breed], image_size, draw)
    light = draw.uniform(0.85, 1.12) * draw.uniform(0.96, 1.04, 3)
    image *= 1 - np.float32(0.45) * shadow
    coat -= image
    coat *= cover
    image += coat
    image *= light.astype(np.float32)[:, None, None]
    image += 7 * draw.standard_normal((image_size, image_size), dtype=np.float32)
    return np.clip(image, 0, 255, out=image).astype(np.uint8).transpose(1, 2, 0)


# --- the dog ----------------------------------------------------------------------------------------------------------------


def _dog(build: _Build, size: int, draw: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Return coat colours (3, S, S), coverage (S, S) and ground shadow (S, S), the last two in [0, 1]."""
    colour = np.array(build.coats[draw.integers(len(build.coats))]) * draw.normal(1, 0.035, 3) * draw.uniform(0.85, 1.15)
    parts = _silhouette(build, draw)
    outline = np.concatenate([points for points, _ in parts])
    low, high = outline.min(axis=0), outline.max(axis=0)
    # The longer side of the bounding box takes this part of the image.
    scale = draw.uniform(0.4, 0.8) / (high - low).max()
    tilt = draw.normal(0, 0.08)
    turn = np.array([[np.cos(tilt), np.sin(tilt)], [-np.sin(tilt), np.cos(tilt)]]) * [draw.choice([-1.0, 1.0]), 1.0]
    room = np.minimum((1 - (high - low) * scale) / 2, 0.22)
    # A little below the middle, where the ground is.
    centre = [0.5, 0.58] + draw.uniform(-0.8, 0.8, 2) * room
    texture = _noise(draw, 9, 9, size)
    feet = centre + (turn[1] * (high - low)[1] / 2) * scale
    shadow = _blob(size, feet, (high - low)[0] * scale * 0.45, 0.035)

    fine = 4 if size < 128 else 2
    canvas = Image.new("RGB", (size * fine, size * fine), _bytes(colour))
    mask = Image.new("L", canvas.size)

    def polygon(points: Points, fill: Points) -> None:
        ImageDraw.Draw(canvas).polygon(points.ravel().tolist(), fill=_bytes(fill))
        ImageDraw.Draw(mask).polygon(points.ravel().tolist(), fill=255)

    for outlined, own_colour in _clutter(draw):
        polygon(outlined * size * fine, np.array(own_colour))
    placed = ((outline - (low + high) / 2) @ (turn * scale) + centre) * (size * fine)
    for (points, shade), end in zip(parts, np.cumsum([len(points) for points, _ in parts]), strict=True):
        polygon(placed[end - len(points) : end], colour * shade if isinstance(shade, float) else np.array(shade))
    coat = np.array(np.asarray(canvas.reduce(fine)).transpose(2, 0, 1), dtype=np.float32, order="C")
    cover = np.asarray(mask.reduce(fine), dtype=np.float32) / np.float32(255)
    # Fur: uneven, and lit from above.
    coat *= np.float32(1.1) + np.float32(0.1) * texture - np.float32(0.25) * _down(size)
    return coat, cover, shadow


def _clutter(draw: np.random.Generator) -> list[tuple[Points, Colour]]:
    """Return stones and logs, in coordinates of the image and the colours of coats, so that a dog is more than a dark patch."""
    things: list[tuple[Points, Colour]] = []
    for _ in range(draw.integers(2, 6)):
        place, lean, length = draw.uniform([0.0, 0.5], [1.0, 1.0]), draw.normal(0, 0.4), draw.uniform(0.0, 0.3)
        thick = draw.uniform(0.015, 0.05)
        end = place + length * np.array([np.cos(lean), np.sin(lean)])
        colour = np.array(_COATS[draw.integers(len(_COATS))]) * draw.uniform(0.8, 1.15)
        things.append((_capsule(place, end, thick, thick * draw.uniform(0.5, 1.0)), tuple(colour.tolist())))
    return things


def _silhouette(build: _Build, draw: np.random.Generator) -> list[Part]:
    """Return the dog in profile, facing right, back to front; the trunk's depth is about 1 and its middle the origin."""
    vary = draw.normal(1, 0.10, 6)
    length, snout = build.length * vary[0], build.snout * vary[1]
    ear_length, tail = build.ear_length * vary[2], build.tail * vary[3]
    head, jaw = build.head * vary[4], build.jaw * vary[4]
    # Some stand, some are about to lie down.
    leg = build.leg * vary[5] * draw.uniform(0.6, 1.0)
    front, rear = length / 2 - 0.35, -length / 2 + 0.35
    sway = draw.normal(0, 0.13, 4)
    nod, wag = draw.normal(0, 0.16), draw.uniform(-0.4, 0.9)
    bib = draw.random() < build.bib
    far, near, dark, white = 0.72, 1.0, 0.62, (232.0, 226.0, 216.0)

    def limb(x: float, swing: float, shade: float) -> list[Part]:
        knee = np.array([x + swing * leg * 0.4, 0.3 + leg * 0.6])
        foot = np.array([x + swing * leg, 0.45 + leg])
        paw = _ellipse((foot[0] + 0.08, foot[1]), 0.17, 0.10)
        shin, thigh = _capsule(knee, foot, 0.13, 0.11), _capsule((x, 0.1), knee, 0.24, 0.13)
        return [(thigh, shade), (shin, shade), (paw, white if bib and shade == near else shade)]

    root = np.array([-length / 2 + 0.12, -0.28])
    tip = root + tail * np.array([-np.cos(wag), -np.sin(wag)])
    skull = np.array([length / 2 + 0.12 + 0.3 * build.neck, -0.45 - build.neck])
    ahead, down = np.array([np.cos(nod), np.sin(nod)]), np.array([-np.sin(nod), np.cos(nod)])
    nose = skull + ahead * (head * 0.75 + snout) + down * head * 0.25
    behind: list[Part] = []
    before: list[Part] = []
    if build.ear == "erect":
        for lean, shade in ((0.28, far), (-0.12, dark)):
            base = skull - down * head * 0.6 + ahead * (lean - 0.1) * head
            behind.append((_triangle(base, -down + ahead * (lean - 0.15), ear_length, head * 0.42), shade))
    else:
        hang, wide = (down, 0.2) if build.ear == "hanging" else (down * 0.8 + ahead * 0.55, 0.15)
        start = skull - ahead * head * 0.45 - down * head * 0.45
        before.append((_capsule(start, start + hang * ear_length, wide * 0.7, wide), dark))
    return [
        *limb(front - 0.1, sway[0] + 0.15, far),
        *limb(rear + 0.1, sway[1] - 0.15, far),
        (_capsule(root, tip, build.tail_width, build.tail_width * 0.5), 0.92),
        (_capsule((rear, -0.03), (front, 0.0), 0.47, 0.52), near),  # the trunk
        *limb(front, sway[2], near),
        *limb(rear, sway[3], near),
        (_capsule((front + 0.05, -0.08), skull, 0.42, head * 0.8), near),  # the neck
        *([(_capsule((front + 0.22, 0.12), (front + 0.34, -0.2), 0.22, 0.2), white)] if bib else []),
        *behind,
        (_ellipse(skull, head, head * 0.92), near),
        (_capsule(skull + down * head * 0.2, nose, head * 0.62, jaw), near),
        (_ellipse(nose + ahead * jaw * 0.6 - down * jaw * 0.4, 0.075, 0.065), (20.0, 18.0, 18.0)),
        *before,
        (_ellipse(skull + ahead * head * 0.42 - down * head * 0.2, 0.06, 0.06), (15.0, 12.0, 12.0)),  # the eye
    ]


def _ellipse(centre: Sequence[float] | Points, width: float, height: float) -> Points:
    points: Points = np.array([width, height]) * _CIRCLE + centre
    return points


def _capsule(start: Sequence[float] | Points, end: Sequence[float] | Points, radius: float, end_radius: float) -> Points:
    """Two half circles and the sides between them."""
    way = np.subtract(end, start)
    along = way / max(float(np.hypot(*way)), 1e-9)
    axes = np.array([along, (-along[1], along[0])])
    half = len(_CIRCLE) // 2
    return np.concatenate([_CIRCLE[: half + 1] @ (end_radius * axes) + end, _CIRCLE[half:] @ (radius * axes) + start])


def _triangle(base: Points, direction: Points, height: float, half_width: float) -> Points:
    side = np.array([-direction[1], direction[0]]) * half_width
    return np.stack([base - side, base + direction * height, base + side])


_ANGLES = np.linspace(-np.pi / 2, 1.5 * np.pi, 25)
_CIRCLE = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)


def _bytes(colour: Points) -> tuple[int, int, int]:
    red, green, blue = np.clip(colour, 0, 255).astype(int).tolist()
    return red, green, blue


# --- the places -------------------------------------------------------------------------------------------------------------


def _noise(draw: np.random.Generator, rows: int, columns: int, size: int) -> Floats:
    """Return smooth noise of standard deviation about 1, shape (S, S), with ``rows`` x ``columns`` bumps."""
    grid = Image.fromarray(draw.standard_normal((rows, columns), dtype=np.float32))
    return np.asarray(grid.resize((size, size), Image.Resampling.BICUBIC))


def _down(size: int) -> Floats:
    """Return the height of every pixel row, 0 at the top and 1 at the bottom, shape (S, 1)."""
    return np.linspace(0, 1, size, dtype=np.float32)[:, None]


def _blob(size: int, centre: Points, width: float, height: float) -> Floats:
    """Return a soft ellipse, shape (S, S)."""
    steps = np.linspace(0, 1, size, dtype=np.float32)
    columns = np.exp(-(((steps - np.float32(centre[0])) / np.float32(width)) ** 2))
    rows = np.exp(-(((steps - np.float32(centre[1])) / np.float32(height)) ** 2))
    return np.outer(rows, columns)


def _step(values: Floats, sharpness: float = 60.0) -> Floats:
    """Return 0 below and 1 above zero, with a soft edge."""
    weight: Floats = np.clip(values * np.float32(sharpness) + np.float32(0.5), 0, 1)
    return weight


def _paint(image: Floats, colour: Colour, weight: Floats) -> None:
    """Paint ``colour`` over ``image`` (3, S, S) where ``weight``, broadcast to (S, S), is 1."""
    for channel, value in zip(image, colour, strict=True):
        channel += weight * (np.float32(value) - channel)


def _sky(size: int, top: Colour, bottom: Colour) -> Floats:
    """Return an image (3, S, S) that goes from one colour to the other."""
    upper, lower = np.array([top, bottom], dtype=np.float32)[:, :, None, None]
    return np.repeat(upper + _down(size) * (lower - upper), size, axis=2)


def _beach(size: int, draw: np.random.Generator) -> Floats:
    horizon, shore = draw.uniform(0.18, 0.35), draw.uniform(0.45, 0.6)
    waves, grain, edge = _noise(draw, 40, 6, size), _noise(draw, 48, 48, size), _noise(draw, 2, 5, size)
    image = _sky(size, (150, 200, 240), (205, 228, 245))
    _paint(image, (48, 130, 175), _step(_down(size) - np.float32(horizon)))
    image += 9 * waves
    beyond = _down(size) - np.float32(shore) - np.float32(0.02) * edge
    _paint(image, (238, 244, 246), _step(beyond + np.float32(0.03)))
    sand = _step(beyond)
    _paint(image, (222, 198, 154), sand)
    image += 7 * grain * sand
    return image


def _snow(size: int, draw: np.random.Generator) -> Floats:
    horizon, wooded = draw.uniform(0.25, 0.45), draw.random() < 0.6
    drifts, trees, hills = _noise(draw, 5, 4, size), _noise(draw, 2, 16, size), _noise(draw, 2, 3, size)
    flakes = _noise(draw, 60, 60, size)
    image = _sky(size, (176, 188, 204), (216, 222, 230))
    below = _down(size) - np.float32(horizon)
    if wooded:
        _paint(image, (74, 96, 92), np.float32(0.8) * _step(below + np.float32(0.10) + np.float32(0.05) * trees, 25))
    ground = _step(below - np.float32(0.02) * hills)
    _paint(image, (240, 244, 250), ground)
    shade = ground * (8 + 9 * drifts)
    for channel, strength in zip(image, (1.0, 0.8, 0.35), strict=True):
        channel -= np.float32(strength) * shade
    _paint(image, (250, 250, 250), _step(flakes - np.float32(2.3), 8))
    return image


def _desert(size: int, draw: np.random.Generator) -> Floats:
    horizon, phase = draw.uniform(0.25, 0.45), draw.uniform(0, 2 * np.pi)
    bend, crest = _noise(draw, 3, 3, size), _noise(draw, 1, 4, size)
    image = _sky(size, (170, 196, 220), (236, 214, 176))
    dune = _step(_down(size) - np.float32(horizon) - np.float32(0.06) * crest)
    _paint(image, (206, 138, 76), dune)
    image += 14 * dune * np.sin(70 * _down(size) + 6 * bend + np.float32(phase))
    return image


def _jungle(size: int, draw: np.random.Generator) -> Floats:
    level = draw.uniform(0.62, 0.75)
    leaves, clumps, trunks = _noise(draw, 34, 34, size), _noise(draw, 8, 8, size), _noise(draw, 2, 22, size)
    image = _sky(size, (66, 122, 58), (54, 104, 50))
    floor = _step(_down(size) - np.float32(level) - np.float32(0.04) * clumps, 15)
    _paint(image, (62, 52, 36), np.float32(0.7) * _step(trunks - np.float32(1.3), 4) * (1 - floor))
    _paint(image, (104, 94, 60), np.float32(0.7) * floor)
    image *= 1 + np.float32(0.2) * (leaves + clumps)
    return image


def _mountain(size: int, draw: np.random.Generator) -> Floats:
    horizon = draw.uniform(0.45, 0.58)
    peaks, crags = _noise(draw, 1, 5, size), _noise(draw, 1, 22, size)
    rock, grass = _noise(draw, 20, 30, size), _noise(draw, 40, 30, size)
    image = _sky(size, (104, 152, 212), (206, 222, 240))
    beneath = _down(size) - np.float32(horizon - 0.12) + np.float32(0.16) * np.abs(peaks) + np.float32(0.03) * crags
    _paint(image, (246, 248, 252), _step(beneath))
    _paint(image, (112, 112, 122), _step(beneath - np.float32(0.07) + np.float32(0.03) * rock))
    image += 12 * rock * _step(beneath)
    meadow = _step(_down(size) - np.float32(horizon))
    _paint(image, (112, 136, 78), meadow)
    image += 12 * grass * meadow
    return image


def _dirt(size: int, draw: np.random.Generator) -> Floats:
    bank = draw.uniform(0.1, 0.3)
    clods, grit = _noise(draw, 14, 14, size), _noise(draw, 50, 50, size)
    image = _sky(size, (156, 120, 86), (136, 100, 70))
    _paint(image, (112, 104, 90), _step(np.float32(bank) - _down(size) + np.float32(0.03) * clods, 20))
    image *= 1 + np.float32(0.13) * clods + np.float32(0.10) * grit
    _paint(image, (190, 178, 160), np.float32(0.8) * _step(grit - np.float32(2.0), 3))
    return image


_PLACES = {"beach": _beach, "snow": _snow, "desert": _desert, "jungle": _jungle, "mountain": _mountain, "dirt": _dirt}
