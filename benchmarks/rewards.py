"""Rewards: completions per second of each rule on two cores, beside the bare rule, math-verify and serial scoring.

Three sides score the same fresh completions in turn: the runner (rules of the pool on two processes), the bare rule (answers
extracted and the function called one after another in this process, as TRL calls reward functions), and for ``math``
math-verify called directly. ``overhead_cheap`` is the largest share that the runner adds to a bare cheap rule (limit 0.15);
``speedup_pool`` the runner over serial scoring, the geometric mean of the rules that run in the pool; ``math_vs_math_verify`` the runner's
completions per second over those of math-verify, called serially.
"""

from __future__ import annotations

import json
import logging
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from rlvlm.rewards import Runner
from rlvlm.rewards.config import RewardConfig
from rlvlm.rewards.execute import arguments, by_position
from rlvlm.rewards.runner import place_of

REPEATS = 5
WORKERS = 2
ROWS = {"code": 8, "svg": 32, "html": 128, "math": 128}
CHEAP_ROWS = 2048
OPTIONS: dict[str, dict[str, Any]] = {
    "format": {"style": "answer"},
    "length": {"unit": "words", "at_most": 40},
    "overlong": {"buffer": 128, "limit": 512},
    "point": {"radius": 5.0},
}
SENTENCE = "the picture shows two red cubes left of a small green ball and one more behind it so I count them again"
WORDS = SENTENCE.split()

Row = tuple[str, dict[str, Any]]


def _thought(draw: random.Random) -> str:
    return "<think>" + " ".join(draw.choices(WORDS, k=60)) + "</think>\n"


def _answer(text: str) -> str:
    return f"<answer>{text}</answer>"


def _number(draw: random.Random) -> tuple[str, Any]:
    value = draw.randrange(10_000)
    return draw.choice([f"{value}", f"{value:,} cubes", f"There are {value}.", f"{value}.0"]), str(
        value + draw.randrange(2)
    )


def _math(draw: random.Random) -> tuple[str, Any]:
    a, b, c = (draw.randrange(2, 40) for _ in range(3))
    return draw.choice(
        [
            (f"{a * b}", f"{a * b}"),
            (f"\\frac{{{a}}}{{{b}}}", f"{a}/{b}"),
            (f"\\frac{{{2 * a}}}{{{2 * b}}}", f"\\frac{{{a}}}{{{b + 1}}}"),
            (f"{a}\\sqrt{{{b}}}", f"\\sqrt{{{a * a * b}}}"),
            (f"({a}, {b})", f"({a}, {c})"),
            (f"{a}x + {b}", f"{b} + {a}x"),
            (f"(x + {a})(x - {b})", f"x^2 + {a - b}x - {a * b}"),
            (f"{a}\\text{{ cm}}", f"{a}"),
            (f"{a}\\%", f"{a / 100}"),
            (f"x = {a}", f"{a}"),
        ]
    )


def _box(draw: random.Random) -> tuple[str, Any]:
    x, y = draw.randrange(300), draw.randrange(300)
    gold = [x, y, x + 80, y + 60]
    return json.dumps({"bbox_2d": [value + draw.randrange(20) for value in gold]}), gold


def _page(draw: random.Random) -> tuple[str, Any]:
    items = "".join(f"<li>{' '.join(draw.choices(WORDS, k=4))}</li>" for _ in range(20))
    gold = f"<html><body><h1>Menu</h1><ul>{items}</ul></body></html>"
    return gold.replace("<li>the", "<li><b>a</b>"), gold


def _drawing(draw: random.Random) -> tuple[str, Any]:
    def shape() -> str:
        x, y = draw.randrange(60), draw.randrange(60)
        return f'<circle cx="{x}" cy="{y}" r="9" fill="#{draw.randrange(1 << 24):06x}"/><path d="M{x} {y}l9 4 -3 8z"/>'

    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64">'
    shapes = [shape() for _ in range(6)]
    return f"{head}{''.join(shapes[:5])}</svg>", f"{head}{''.join(shapes)}</svg>"


def _program(draw: random.Random) -> tuple[str, Any]:
    factor = draw.randrange(2, 1000)
    return f"```python\ndef f(x):\n    return {factor} * x\n```", [f"assert f({n}) == {factor * n}" for n in (1, 2, 3)]


MAKERS: dict[str, Callable[[random.Random], tuple[str, Any]]] = {
    "number": _number,
    "math": _math,
    "multiple_choice": lambda draw: (
        draw.choice(["B", "(B)", "The answer is C.", "A or B"]) + " " * draw.randrange(40),
        "B",
    ),
    "bool": lambda draw: (f"Yes, {draw.choice(WORDS)} {draw.randrange(1000)}", "yes"),
    "string": lambda draw: (" ".join(draw.choices(WORDS, k=3)), " ".join(draw.choices(WORDS, k=3))),
    "critic": lambda draw: (f"Response {draw.randrange(4000)}", "Response 2"),
    "ocr": lambda draw: (" ".join(draw.choices(WORDS, k=30)), " ".join(draw.choices(WORDS, k=30))),
    "bbox": _box,
    "point": lambda draw: (f"({draw.randrange(300)}, {draw.randrange(300)})", [150, 150]),
    "html": _page,
    "svg": _drawing,
    "code": _program,
}


def make_rows(name: str, seed: int) -> list[Row]:
    """Completions with their records, other ones for every seed, so that nothing is found in a cache."""
    draw = random.Random(f"{name}{seed}")
    rows = []
    for _ in range(ROWS.get(name, CHEAP_ROWS)):
        text, gold = MAKERS.get(name, _number)(draw)
        rows.append((_thought(draw) + _answer(text), {"answer": gold}))
    return rows


def run_serially(runner: Runner, rows: Sequence[Row]) -> list[Any]:
    """The bare rule: what it reads is extracted, and it is called one time after another, in this process."""
    part = runner.rules[0].part
    assert part is not None
    samples = runner.samples([row[0] for row in rows], [row[1] for row in rows], response_length=[400] * len(rows))
    needed, optional = arguments(part, samples)
    call = by_position(part)
    return [call(*given) for given in zip(*needed, *optional.values(), strict=True)]


def run_pooled(runner: Runner, rows: Sequence[Row]) -> list[float | None]:
    """The runner, as in training."""
    samples = runner.samples([row[0] for row in rows], [row[1] for row in rows], response_length=[400] * len(rows))
    return runner.score(samples).scores


def run_math_verify(rows: Sequence[Row]) -> list[float]:
    """math-verify as its documentation calls it: gold and completion parsed, then compared."""
    from math_verify import parse, verify

    return [float(verify(parse(f"${row[1]['answer']}$", parsing_timeout=5), parse(row[0]))) for row in rows]


def seconds_of(work: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Seconds of one call."""
    start = clock()
    work()
    return clock() - start


def compare(name: str) -> dict[str, Any]:
    """Best seconds of every side on the same completions, in turn."""
    runner = Runner(RewardConfig(rules={name: {**OPTIONS.get(name, {}), "weight": 1.0}}, workers=WORKERS, timeout=60.0))
    sides: dict[str, Callable[[Sequence[Row]], Any]] = {
        "runner": lambda rows: run_pooled(runner, rows),
        "bare": lambda rows: run_serially(runner, rows),
    }
    if name == "math":
        sides["math-verify"] = run_math_verify
    place = place_of(runner.rules[0])
    # Rules that run in this thread take CPU time, which other processes do not blur; the pool is judged by the wall clock.
    clock = time.process_time if place == "inline" else time.perf_counter
    times: dict[str, list[float]] = {side: [] for side in sides}
    for repeat in range(-1, REPEATS):
        for side, work in sides.items():
            # Each side gets completions that none has scored yet, of the same kind and number.
            rows = make_rows(name, 10 * (repeat + 1) + [*sides].index(side))
            spent = seconds_of(lambda work=work, rows=rows: work(rows), clock)  # type: ignore[misc]
            if repeat >= 0:  # the first round starts workers and imports
                times[side].append(spent)
    runner.close()
    return {
        "place": place,
        "rows": ROWS.get(name, CHEAP_ROWS),
        **{side: min(one) for side, one in times.items()},
    }


def main() -> None:
    """Prints a table and, last, one line of JSON."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    names = sorted({*MAKERS, "format", "repetition", "length", "overlong"})
    found = {}
    print(f"{'rule':<16} {'runs':<8} {'runner/s':>10} {'bare/s':>10} {'runner:bare':>12}")
    for name in names:
        one = found[name] = compare(name)
        ratio = one["runner"] / one["bare"]
        extra = f"   math-verify {one['rows'] / one['math-verify']:,.0f}/s" if "math-verify" in one else ""
        print(
            f"{name:<16} {one['place']:<8} {one['rows'] / one['runner']:>10,.0f} {one['rows'] / one['bare']:>10,.0f} {ratio:>12.2f}{extra}",
            flush=True,
        )
    cheap = [one["runner"] / one["bare"] - 1 for one in found.values() if one["place"] == "inline"]
    pooled = [one["bare"] / one["runner"] for one in found.values() if one["place"] == "pool"]
    print(
        json.dumps(
            {
                "overhead_cheap": round(max(cheap), 3),
                "speedup_pool": round(statistics.geometric_mean(pooled), 2),
                "math_vs_math_verify": round(found["math"]["math-verify"] / found["math"]["runner"], 2),
                "completions_per_s": {name: round(one["rows"] / one["runner"]) for name, one in found.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
