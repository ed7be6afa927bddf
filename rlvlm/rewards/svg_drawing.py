"""SVG drawings from untrusted text: parsed without entities, stripped to shapes, bounded in cost, rendered to pixels."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlvlm.rewards.extras import require
from rlvlm.rewards.forked import run_forked

MAX_CHARS = 100_000
"""A longer source is not drawn."""
MAX_ELEMENTS = 4_000
MAX_COST = 20_000
"""Shapes drawn at most, those that references repeat included; a gradient or a layer (opacity, mask, clip) counts as 100."""
MAX_STYLE_CHARS = 10_000
MAX_COORDINATE = 1e6
"""An element with a larger number is not drawn: renderers overflow."""
MAX_DEPTH = 100
"""Nesting at most, references included."""
DRAW_SECONDS = 3
"""CPU seconds of the renderer; a real drawing takes some hundredths."""
DRAW_MEMORY_MB = 512
"""Memory of the renderer above what the process has."""
SIDE = 224
"""Pixels of a drawing's longer side."""

_SHAPES = frozenset(
    {"svg", "g", "defs", "symbol", "use", "switch", "a", "title", "desc", "style"}
    | {"path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "text", "tspan"}
    | {"linearGradient", "radialGradient", "stop", "clipPath", "mask", "pattern", "marker"}
)
_LINES = frozenset({"path", "line", "polyline", "polygon"})
_REFERENCE = re.compile(r"url\(\s*['\"]?#([^'\")\s]*)")
_FOREIGN_URL = re.compile(r"url\(\s*['\"]?(?!#)|@import", re.IGNORECASE)
_COSTLY = re.compile(r"opacity|mask|clip|blend|isolation|url\(", re.IGNORECASE)
_PIECE = re.compile(r"#[0-9A-Fa-f]+|[A-Za-z]+|[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_LONG_NUMBER = re.compile(r"[0-9]{6,}(?:\.[0-9]*)?|(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")
_LENGTH = re.compile(r"\s*([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,2})?)\s*(?:px\s*)?$")
_WORD = re.compile(r"\w+")


def parse(source: str) -> Any | None:
    """The root element of a drawing, stripped to shapes; ``None`` when there is none. Opens nothing and expands no entity."""
    start = source.lower().find("<svg")
    if start < 0 or len(source) > MAX_CHARS:
        return None
    etree = require("lxml.etree")
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        recover=True,
        remove_comments=True,
        remove_pis=True,
    )
    text = source[start:].replace("\x00", "").encode("utf-8", "replace")  # without the doctype, which stands before
    try:
        root = etree.fromstring(text, parser)
    except (etree.XMLSyntaxError, ValueError):
        return None
    if root is None or _name(root) != "svg":
        return None
    return root if _strip(root) else None


def _strip(root: Any) -> bool:
    """Takes out everything but shapes, and every reference out of the drawing; ``False`` when there are too many elements."""
    elements = list(root.iter())
    if len(elements) > MAX_ELEMENTS:
        return False
    for element in elements:
        styles = element.text or "" if _name(element) == "style" else ""
        foreign = len(styles) > MAX_STYLE_CHARS or _FOREIGN_URL.search(styles)
        if element is not root and (_name(element) not in _SHAPES or foreign or _has_huge_number(element)):
            parent = element.getparent()
            if parent is not None:
                parent.remove(element)
            continue
        for name, value in element.attrib.items():
            local = name.rpartition("}")[2]
            outside = local in ("href", "src") and not value.strip().startswith("#")
            if outside or local.startswith("on") or _FOREIGN_URL.search(value) or local in ("filter", "base"):
                del element.attrib[name]
    return True


def _has_huge_number(element: Any) -> bool:
    numbers = (number for value in element.attrib.values() for number in _LONG_NUMBER.findall(value))
    return any(abs(float(number)) > MAX_COORDINATE for number in numbers)


def tokens(root: Any) -> tuple[list[str], list[int], list[int]]:
    """What a drawing is written with, and its tree: attribute names and pieces of their values, sorted by name, and words; the
    path of every tag; and the depth of every tag.

    All without the root, so that an empty drawing has nothing.
    """
    words: list[str] = []
    paths: list[int] = []
    depths: list[int] = []
    above: dict[Any, tuple[int, int]] = {root: (0, 0)}
    for element in root.iterdescendants():
        path, depth = above[element.getparent()]
        above[element] = path, depth = hash((path, _name(element))), depth + 1
        paths.append(path)
        depths.append(depth)
        for attribute, value in sorted(element.attrib.items()):
            words.append(attribute.rpartition("}")[2])
            words.extend(_PIECE.findall(value.lower()))
        words.extend(_WORD.findall(element.text or ""))
    return words, paths, depths


def canvas_of(root: Any) -> tuple[int, int]:
    """Width and height in pixels to draw at: the drawing's own proportion, at most 4:1, the longer side ``SIDE``."""
    _, _, width, height = _view_box(root) or (0.0, 0.0, 1.0, 1.0)
    ratio = min(max(width / height, 0.25), 4.0)
    return (SIDE, round(SIDE / ratio)) if ratio >= 1 else (round(SIDE * ratio), SIDE)


def render(root: Any, size: tuple[int, int]) -> np.ndarray | None:
    """The drawing on white, [height, width, 3] uint8; ``None`` when it can't be drawn, has no size, or costs too much.

    No fonts are loaded, so text is not drawn. The renderer works in a process of its own: a drawing that makes it abort, or that takes
    longer or more memory than any real one, is one that can't be drawn.
    """
    view_box = _view_box(root)
    if view_box is None or _cost(root) > MAX_COST:
        return None
    from PIL import Image

    root.set("viewBox", " ".join(f"{value:g}" for value in view_box))
    root.set("width", str(size[0]))
    root.set("height", str(size[1]))
    root.attrib.pop("preserveAspectRatio", None)
    markup = require("lxml.etree").tostring(root, encoding="unicode")
    if "http://www.w3.org/2000/svg" not in markup:
        markup = markup.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    require("resvg_py")  # before the fork, so that it is loaded once
    png = run_forked(lambda: _png(markup), seconds=DRAW_SECONDS, memory_mb=DRAW_MEMORY_MB)
    if not png:
        return None
    image = Image.open(io.BytesIO(png)).convert("RGB")
    return np.asarray(image if image.size == size else image.resize(size))


def _png(markup: str) -> bytes:
    """The drawing as a PNG file; nothing where there is nothing to draw, or no drawing."""
    try:
        return bytes(require("resvg_py").svg_to_bytes(svg_string=markup, background="#ffffff", skip_system_fonts=True))
    except ValueError:
        return b""


def similarity(first: np.ndarray, second: np.ndarray) -> float:
    """Structural similarity (SSIM) over the three colours, at most 1. Source: Wang et al. 2004."""
    ssim = require("skimage.metrics").structural_similarity
    return float(ssim(first, second, channel_axis=2, data_range=255))


def _name(element: Any) -> str:
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def has_text(root: Any) -> bool:
    """Whether the drawing holds text, which is not drawn."""
    return any(_name(element) in ("text", "tspan") and (element.text or "").strip() for element in root.iter())


def _view_box(root: Any) -> tuple[float, float, float, float] | None:
    """Origin and size of the drawing's own units: its viewBox, else its width and height, else 100 by 100.

    ``None`` for a size that leaves nothing to see: a side of 0 or less, or beyond the largest coordinate.
    """
    sides = [float(side[1]) if side else None for side in (_LENGTH.match(root.get(n, "")) for n in ("width", "height"))]
    if any(side is not None and side <= 1e-3 for side in sides):
        return None
    numbers = [
        float(number)
        for number in re.findall(r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]{1,2})?", root.get("viewBox", ""))[:5]
    ]
    if len(numbers) == 4:
        visible = all(abs(number) < MAX_COORDINATE for number in numbers) and min(numbers[2:]) > 1e-3
        return (numbers[0], numbers[1], numbers[2], numbers[3]) if visible else None
    width, height = (100.0 if side is None else side for side in sides)
    return (0.0, 0.0, width, height) if max(width, height) < MAX_COORDINATE else None


def _cost(root: Any) -> float:
    """Shapes that drawing takes, with what references repeat; infinite for a circle or a long chain of references."""
    by_id = {element.get("id"): element for element in root.iter() if element.get("id")}
    cost: dict[Any, float] = {}
    marked = _markers_of_all(root)
    styled = any(_COSTLY.search(element.text or "") for element in root.iter() if _name(element) == "style")

    def total(element: Any, depth: int) -> float:
        if depth > MAX_DEPTH:
            return math.inf
        if element not in cost:
            cost[element] = math.inf  # while it is open: who comes back here goes in a circle
            inner = sum(total(child, depth + 1) for child in element)
            repeated = sum(
                times * total(by_id[target], depth + 1)
                for target, times in _references(element, marked)
                if target in by_id
            )
            costly = styled or any(_COSTLY.search(f"{name}:{value}") for name, value in element.attrib.items())
            cost[element] = (100.0 if costly else 1.0) + inner + repeated
        return cost[element]

    return total(root, 0)


def _references(element: Any, marked: frozenset[str]) -> Iterator[tuple[str, int]]:
    """What an element draws beside itself, and how often; ``marked`` names the markers that stand on every line."""
    corners = 1 + len(element.get("d", element.get("points", ""))) // 4
    for name, value in element.attrib.items():
        local = name.rpartition("}")[2]
        if local == "href":
            yield value.strip()[1:], 1
        for target in _REFERENCE.findall(value):
            yield target, corners if "marker" in f"{local}:{value}" else 1
    if marked and _name(element) in _LINES and all(_name(above) != "marker" for above in element.iterancestors()):
        yield from ((target, corners) for target in marked)


def _markers_of_all(root: Any) -> frozenset[str]:
    """Markers that a style sheet or a group may put on any line."""
    found = [text for element in root.iter() if _name(element) == "style" and "marker" in (text := element.text or "")]
    groups = (element for element in root.iter() if _name(element) not in _LINES)
    found += [value for group in groups for name, value in group.attrib.items() if "marker" in f"{name}:{value}"]
    return frozenset(target for text in found for target in _REFERENCE.findall(text))
