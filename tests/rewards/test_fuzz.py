"""Every rule on arbitrary text: a finite score in its range, or an error that the rule itself words; never anything else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlvlm.rewards import REWARDS, Runner
from rlvlm.rewards.config import RewardConfig
from rlvlm.rewards.pool import Pool

NEEDS_A_MODEL = {"clip_similarity", "clip_retrieval", "vqa_consistency", "reward_model", "llm_judge"}
OPTIONS: dict[str, dict[str, Any]] = {"overlong": {"buffer": 8}, "point": {"radius": 1.0}, "code": {"seconds": 1.0}}
RULES = [entry.name for entry in REWARDS.own_entries() if entry.name not in NEEDS_A_MODEL]
EXAMPLES = {"code": 4, "math": 25, "html": 30, "svg": 30}
MORE = int(os.environ.get("RLVLM_FUZZ", "1"))
"""RLVLM_FUZZ=50 tries so many times more, with other draws each time."""

FRAGMENTS = (
    *("<think>", "</think>", "<answer>", "</answer>", "\\boxed{", "}", "{", "\\{", "\\}", "$", "```\n", "```json\n"),
    *("\\frac{1}{2}", "\\sqrt{", "^{", "_{", "\\pm ", "\\text{ or }", "!", "%", "°", "½", "√", "\\pi ", "\\infty "),
    *(
        "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
        "(",
        ")",
        "[",
        "]",
        ",",
        ";",
        ":",
        "=",
        "<",
        ">",
        "-",
        "−",
        "+",
        "*",
        "/",
    ),
    *("0", "1", "12", "1,234", "1e999", "NaN", ".5", "x", "y", "i", "e", "pi", "cm", "１２", "文"),
    *("yes", "no", "not ", "true", "A", "B.", "(C)", "Answer: ", "or ", "and ", "答案："),
    *("[10, 20, 110, 220]", '{"bbox_2d": [1,2,3,4]}', '<point x="1" y="2"', "(1,2)"),
    *("<html>", '<p class="a">', "</p>", "<!--", "-->", "&amp;", "&a;", "<!DOCTYPE svg [", "]>"),
    *('<svg viewBox="0 0 9 9">', '<rect width="5" height="5" fill="red"/>', "</svg>", '<use href="#a"/>', '<g id="a">'),
    *(
        "def f(x):\n",
        "    return x\n",
        "print(",
        "import os\n",
        "\n",
        "\t",
        " ",
        "\x00",
        "\ud800",
        "\u202e",
        "\u200b",
        "e\u0301",
    ),
)
GOLDS: list[Any] = [
    "3",
    "0.5",
    "\\frac{1}{2}",
    "B",
    "AC",
    "yes",
    [10, 20, 110, 220],
    "[1, 2]",
    "<p>a</p>",
    ["a", "b"],
    7,
    True,
    None,
    "",
    {},
    "assert f(1) == 1",
]

text = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), max_size=24).map("".join),
    st.text(st.characters(), max_size=60),
    st.lists(st.sampled_from(FRAGMENTS), max_size=10).map(
        lambda parts: f"<think>a</think><answer>{''.join(parts)}</answer>"
    ),
    st.lists(st.sampled_from(FRAGMENTS), max_size=10).map(lambda parts: f"<think>a</think>\\boxed{{{''.join(parts)}}}"),
)
gold = st.one_of(st.sampled_from(GOLDS), text)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    shared = Pool(1, 1024)
    yield shared
    shared.close()


@pytest.mark.parametrize("name", RULES)
def test_any_text_gives_a_score_in_range_or_a_typed_error(name: str, pool: Pool) -> None:
    runner = Runner(RewardConfig(rules={name: {**OPTIONS.get(name, {}), "weight": 1.0}}), pool)
    low, high = REWARDS.get(name).traits["range"]

    @settings(
        max_examples=EXAMPLES.get(name, 40) * MORE,
        deadline=None,
        derandomize=MORE == 1,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(st.tuples(text, gold), min_size=1, max_size=5))
    def check(rows: list[tuple[str, Any]]) -> None:
        size = len(rows)
        records = [{"answer": gold, "image_size": [100, 50], "options": ["a", "b"]} for _, gold in rows]
        given = {"response_length": [len(row[0]) for row in rows], "max_length": [64] * size}
        found = runner.score(runner.samples([row[0] for row in rows], records, **given))
        for row, score in enumerate(found.scores):
            if score is None:
                assert found.failures[row].kind == "error", (rows[row], found.failures[row])
            else:
                assert low <= score <= high, (rows[row], score)

    check()
