"""Numbers with units: the unit at an answer's end, its spellings, and what it is worth."""

from __future__ import annotations

import re
from fractions import Fraction

_TABLE = {
    "length": {"mm": "0.001", "cm": "0.01", "dm": "0.1", "m": "1", "km": "1000", "Mm": "1000000", "inch": "0.0254", "foot": "0.3048",
               "yard": "0.9144", "mile": "1609.344"},
    "mass": {"mg": "0.000001", "g": "0.001", "kg": "1", "Mg": "1000", "ton": "1000", "lb": "0.45359237"},
    "time": {"ms": "0.001", "second": "1", "Ms": "1000000", "minute": "60", "hour": "3600", "day": "86400", "week": "604800"},
    "volume": {"ml": "0.001", "l": "1", "Ml": "1000000"},
    "angle": {"degree": "1"},
    "money": {"cent": "0.01", "dollar": "1"},
    "power": {"mW": "0.001", "W": "1", "kW": "1000", "MW": "1000000", "GW": "1000000000"},
    "energy": {"mJ": "0.001", "J": "1", "kJ": "1000", "MJ": "1000000"},
    "frequency": {"mHz": "0.001", "Hz": "1", "kHz": "1000", "MHz": "1000000", "GHz": "1000000000"},
    "speed": {"knot": "1"},
    "any": {"unit": "1"},
    "force": {"mN": "0.001", "N": "1", "kN": "1000", "MN": "1000000"},
}  # fmt: skip
_SPELLINGS = {
    "millimeter": "mm", "millimetre": "mm", "centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m",
    "kilometer": "km", "kilometre": "km", "inches": "inch", "in": "inch", "feet": "foot", "ft": "foot", "yd": "yard", "mi": "mile",
    "gram": "g", "kilogram": "kg", "tonne": "ton", "pound": "lb", "lbs": "lb", "s": "second", "sec": "second", "min": "minute",
    "h": "hour", "hr": "hour", "liter": "l", "litre": "l", "L": "l", "milliliter": "ml", "millilitre": "ml", "mL": "ml", "ML": "Ml",
    "deg": "degree", "watt": "W", "joule": "J", "newton": "N", "hertz": "Hz", "kn": "knot",
}  # fmt: skip
_UNIT = {unit: (kind, Fraction(worth)) for kind, units in _TABLE.items() for unit, worth in units.items()}
_BY_LOWER: dict[str, set[str]] = {}
for _word, _unit in (*((unit, unit) for unit in _UNIT), *_SPELLINGS.items()):
    _BY_LOWER.setdefault(_word.lower(), set()).add(_unit)
_WORD = r"[A-Za-z]+"
_EXPONENT = r"(?:\s*\^\{[23]\}|[23](?![0-9])|\s+(?:squared|cubed))?"
_TAIL = re.compile(
    rf"\s*(?P<unit>(?:(?:square|cubic|sq\.?|cu\.?)\s+)?{_WORD}{_EXPONENT}(?:\s*/\s*{_WORD}{_EXPONENT}|\s+per\s+{_WORD})?)$"
)
_VALUE_END = re.compile(r"[0-9)}]")
MAX_UNIT_CHARS = 60
"""A unit is looked for in the last so many characters: more would take time quadratic in the text."""
_ONE = re.compile(rf"(?:(square|sq\.?|cubic|cu\.?)\s+)?({_WORD})(?:\s*\^\{{([23])\}}|([23])|\s+(squared|cubed))?")

Unit = tuple[tuple[tuple[str, int], ...], Fraction]
"""Kinds with their powers, and the worth in the kinds' first units."""


def split_unit(text: str) -> tuple[str, str]:
    """The value and the unit of a canonical answer such as ``12 cm`` or ``30 km/h``; the unit is ``""`` when there is none."""
    first = _VALUE_END.search(text)
    match = _TAIL.search(text, max(first.end(), len(text) - MAX_UNIT_CHARS)) if first else None
    if match is None:
        return text, ""
    value, unit = text[: match.start()].rstrip(), match["unit"]
    known = read_unit(unit) is not None
    counted = (
        re.fullmatch(rf"{_WORD}", unit) and len(unit) >= 3 and text[len(value) : len(value) + 1] == " "
    )  # "12 apples"
    return (value, unit) if (known and _stands_apart(text, value)) or counted else (text, "")


def _stands_apart(text: str, value: str) -> bool:
    """A one-letter unit needs a space before it: ``5 m`` is five metres, ``5m`` is five times m."""
    tail = text[len(value) :]
    return tail.startswith(" ") or len(re.match(_WORD, tail.strip())[0]) > 1  # type: ignore[index]


def read_unit(text: str) -> Unit | None:
    """The kinds and worth of a unit; ``None`` for one that is not in the table."""
    kinds: dict[str, int] = {}
    worth = Fraction(1)
    for sign, part in zip((1, -1), re.split(r"\s*/\s*|\s+per\s+", text), strict=False):
        match = _ONE.fullmatch(part.strip())
        name = _name(match[2]) if match else None
        if match is None or name is None:
            return None
        word = match[1] or match[5] or ""
        power = int(match[3] or match[4] or 1) if not word else (2 if word.startswith("sq") else 3)
        kind, one = _UNIT[name]
        kinds[kind] = kinds.get(kind, 0) + sign * power
        worth *= one ** (sign * power)
    return tuple(sorted(kinds.items())), worth


def same_kind(first: Unit, second: Unit) -> bool:
    """Whether two units measure the same; "square units" stand for those of any area, and so on."""
    if first[0] == second[0]:
        return True
    powers = [sorted(power for _, power in unit[0]) for unit in (first, second)]
    return powers[0] == powers[1] and any(dict(unit[0]).keys() == {"any"} for unit in (first, second))


def _name(word: str) -> str | None:
    for form in (word, word.rstrip("s")):
        name = _SPELLINGS.get(form, form)
        if name in _UNIT:
            return name
    return _in_other_case(word) if len(word) > 1 else None


def _in_other_case(word: str) -> str | None:
    """The unit that a word means in whatever case, where only one is so spelt: ``KG``, but not ``MM`` (milli or mega?)."""
    for form in (word.lower(), word.lower().rstrip("s")):
        if form in _BY_LOWER and len(form) > 1:
            (name, *others) = _BY_LOWER[form]
            return None if others else name
    return None
