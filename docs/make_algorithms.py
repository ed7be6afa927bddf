"""Writes ``docs/algorithms.md`` from the registries and the docstrings of their parts.

    python docs/make_algorithms.py            # write it
    python docs/make_algorithms.py --check    # fail if it is not what would be written

A docstring's first paragraph says what a part computes; a line ``Paper: …`` and a line ``Elsewhere: …`` (the names that peers
have for it) may follow, and ``Args:`` describes its options.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rlvlm.algos import (
    ADVANTAGES,
    AGGREGATIONS,
    CONTROLLERS,
    CORRECTIONS,
    FILTERS,
    KL_ESTIMATORS,
    POLICY_LOSSES,
    REGULARIZERS,
    VALUE_LOSSES,
)
from rlvlm.registry import Entry, Option, Registry

PAGE = Path(__file__).with_name("algorithms.md")
PRESETS = Path(__file__).parent.parent / "rlvlm/conf/preset"

HEAD = """# Algorithms

<!-- Made by docs/make_algorithms.py from the registries and docstrings; change those, then run it. -->

An algorithm is composed by name under the key `algorithm` of a recipe, or of `AlgorithmConfig` in Python. Each part is a
name or a mapping with `name` and options; `rlvlm parts` lists the same tables in a terminal.

```yaml
algorithm:
  advantage: {name: grpo, std: none}
  policy_loss: {name: ppo_clip, clip_high: 0.28}
  regularizers: {kl_to_reference: {weight: 0.01, estimator: k3}, entropy: 0.001}
  aggregation: token-mean
  filters: [reward_spread]
```

Shapes: B samples, L tokens, P prompts. All token fields are [B, L], and what stands outside `loss_mask` never counts.
"""

KINDS: list[tuple[str, str, Registry, str]] = [
    (
        "Advantages",
        "advantage",
        ADVANTAGES,
        "From rewards to advantages [B, L]. Groups may have any size and order. A group of equal rewards gets exactly 0, and so "
        "does a group of one, except with `gae`, `reinforce_plus_plus` and `remax`, which have no group baseline, and with the options "
        "said below (`singleton`, `equal_groups`, grpo's `mean` and `std`). A row with a reward that is not finite is left out of every "
        "statistic and gets 0; `sum/advantages/left_out` counts such rows. `gae` reads the values of a "
        "critic, which no pipeline here trains: `rlvlm check` refuses it in a recipe, and it serves loops of your own.",
    ),
    (
        "Policy losses",
        "policy_loss",
        POLICY_LOSSES,
        "A loss for each token, with ρ = exp(logp - prox_logp) and A the advantage. *Scope* says how far it looks: one token, a whole "
        "sequence, or the whole mini-batch of an optimiser step; each is exact under any split into micro-batches.",
    ),
    (
        "Value losses",
        "value_loss",
        VALUE_LOSSES,
        "The critic's loss for each token, with an optional `weight`; like `gae` for loops of your own, and refused in a recipe.",
    ),
    (
        "KL estimators",
        "regularizers.kl_to_reference.estimator",
        KL_ESTIMATORS,
        "Also of `kl_in_reward: {weight, estimator, controller}`, which takes the KL of `prox_logp` to the reference off the token "
        "rewards. A name with `+` has the value of the estimator and the gradient of `k2`.",
    ),
    (
        "Regularizers",
        "regularizers",
        REGULARIZERS,
        "Name to weight, or to a mapping with `weight` and options; several at once. *Acts on* says where: a penalty added to the "
        "loss, a penalty taken off the token rewards before advantages, or weights of the tokens in the policy loss, blended in "
        "as 1 + weight · (w - 1).",
    ),
    (
        "Controllers",
        "regularizers.kl_to_reference.controller",
        CONTROLLERS,
        "How the weight of a penalty in the loss, or of `kl_in_reward`, moves after each step.",
    ),
    (
        "Corrections",
        "correction",
        CORRECTIONS,
        "For the difference between the trainer's policy and the engine's, with the ratio exp(prox_logp - behav_logp), trainer over "
        "engine. Weights multiply the policy loss; a rejected token is out of every loss and denominator. A list multiplies weights "
        "and intersects masks. `decoupled_clip` weighs by itself and takes none.",
    ),
    (
        "Aggregations",
        "aggregation",
        AGGREGATIONS,
        "From a loss l for each token to a scalar. Denominators are counted over the whole mini-batch, all ranks and micro-batches, "
        "before its first backward. A fully masked sequence is in no numerator and in no denominator.",
    ),
    (
        "Filters",
        "filters",
        FILTERS,
        "Whole groups are dropped before advantages are estimated; what was dropped, by which filter, is in the batch's `meta` and "
        "in the metrics. New prompts are then answered in their place until the batch is full (dynamic sampling), at most "
        "`algorithm.max_refills` times a step; `sum/refills` counts the rounds, `sum/refill/missing_groups` what was missing in the "
        "end. `of` may name `rewards`, `scores`, a reward rule, or a number that a rule returns beside its score, by its key or as "
        "`rule.key`; `rlvlm check` refuses a name that nothing gives. `rewards` are those after penalties such as `overlong`, and "
        "before the KL of `kl_in_reward`.",
    ),
]


class Doc(NamedTuple):
    """A part's docstring, taken apart."""

    says: str
    paper: str
    elsewhere: str
    options: dict[str, str]


def read_doc(entry: Entry) -> Doc:
    """Takes the docstring of a part apart; the class's docstring where it is one."""
    text = inspect.getdoc(entry.target) or ""
    body, _, arguments = text.partition("\nArgs:\n")
    says = _joined(body.split("\n\n")[0].split("\nPaper:")[0].split("\nElsewhere:")[0])
    return Doc(says, _labelled("Paper", body), _labelled("Elsewhere", body), _read_options(arguments))


def _labelled(label: str, body: str) -> str:
    found = re.search(rf"^{label}: (.*?)(?=^Paper:|^Elsewhere:|\n\n|\Z)", body, re.MULTILINE | re.DOTALL)
    return _joined(found[1]).removesuffix(".") if found else ""


def _read_options(arguments: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in re.split(r"\n(?=    \w)", arguments.split("\n\n")[0]):
        names, colon, meaning = item.partition(": ")
        if colon:
            options.update(dict.fromkeys((name.strip() for name in names.split(",")), _joined(meaning)))
    return options


def _joined(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("``", "`")


def _linked(text: str) -> str:
    text = re.sub(r"arXiv (\d{4}\.\d{5})", r"[\1](https://arxiv.org/abs/\1)", text)
    return re.sub(r"(?<![(\w])(https?://[^\s;,]+[^\s;,.])", r"<\1>", text)


def _option(option: Option) -> str:
    if option.default is Option.REQUIRED:
        return f"`{option.name}` (required)"
    return f"`{option.name}`: {_value(option.default)}"


def _value(value: Any) -> str:
    return (
        {None: "null", True: "true", False: "false"}.get(value, str(value))
        if not isinstance(value, float)
        else f"{value:g}"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def table(registry: Registry) -> list[str]:
    """The parts of one kind as a Markdown table."""
    trait = {"policy_losses": "scope", "regularizers": "acts_on"}.get(registry.group)
    heads = ["name", "formula", "reads", "options", *([trait.replace("_", " ")] if trait else []), "paper", "elsewhere"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for entry in registry.own_entries():
        doc = read_doc(entry)
        reads = ", ".join(f"`{read}`" for read in entry.needs)
        options = ", ".join(_option(option) for option in entry.options.values())
        traits = [str(entry.traits[trait])] if trait else []
        cells = [f"`{entry.name}`", doc.says, reads, options, *traits, _linked(doc.paper), doc.elsewhere]
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return lines


def option_list(registry: Registry) -> list[str]:
    """What the docstrings say of options, part by part."""
    lines = []
    for entry in registry.own_entries():
        doc = read_doc(entry)
        described = [(option, doc.options[option]) for option in entry.options if option in doc.options]
        lines += [f"- `{entry.name}`.`{option}`: {meaning}" for option, meaning in described]
    return lines


def presets() -> list[str]:
    """The presets with the comment at their head, and what each sets."""
    lines = []
    for path in sorted(PRESETS.glob("*.yaml")):
        comments = [line[1:].strip() for line in path.read_text().splitlines() if line.startswith("#")][1:]
        about = " ".join(comments[: comments.index("")] if "" in comments else comments)
        keys = [key for key in yaml.safe_load(path.read_text()) if key not in ("defaults", "conventions")]
        sets = f" Sets {', '.join(f'`{key}`' for key in keys)}." if keys else ""
        lines.append(f"- `{path.stem}`: {about}{sets}")
    return lines


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for title, key, registry, about in KINDS:
        lines += [f"## {title}\n", f"Key: `algorithm.{key}`. {about}\n", *table(registry), ""]
        described = option_list(registry)
        if described:
            lines += ["Options:\n", *described, ""]
    lines += [
        "## Presets\n",
        "`rlvlm train <recipe> +preset=<name>` lays one over the recipe. Conventions give options to whichever parts the recipe "
        "chooses (`algorithm.conventions`); whole algorithms also choose the parts. What a preset says holds against the recipe under "
        "it: `rlvlm check <recipe> +preset=<name>` prints each value that it changed. An override, or a recipe that inherits the "
        "preset, holds against the preset.\n",
        *presets(),
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Writes the page, or with ``--check`` says whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--check", action="store_true", help="fail if docs/algorithms.md is not up to date")
    text = page()
    if not parser.parse_args(arguments).check:
        PAGE.write_text(text)
        return 0
    if PAGE.is_file() and PAGE.read_text() == text:
        return 0
    print("docs/algorithms.md is not up to date; run python docs/make_algorithms.py.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
