"""A preset holds against the recipe that it is laid over, and gives way to what comes later; a check says what it changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.algos.composition import Composition, compose
from rlvlm.cli.check import main
from rlvlm.conf import load_recipe
from rlvlm.conf.check import examine
from rlvlm.conf.presets import lay_preset
from rlvlm.conf.stages import resolve_stages

CLIPPED = ("clevr_count", "geometry3k", "refcoco")
KL = "algorithm.regularizers.kl_to_reference="


def composed(config: AlgorithmConfig) -> Composition:
    names = "advantage policy_loss value_loss regularizers kl_in_reward correction aggregation filters conventions"
    return compose(**{name: getattr(config, name) for name in names.split()})


def recipe(tmp_path: Path, text: str, *overrides: str) -> Any:
    (tmp_path / "own.yaml").write_text(text)
    return load_recipe(tmp_path / "own.yaml", overrides)


def clips(config: AlgorithmConfig) -> tuple[Any, ...]:
    options = composed(config).policy_loss.options
    return tuple(options.get(name) for name in ("clip_low", "clip_high", "dual_clip"))


@pytest.mark.parametrize("name", CLIPPED)
@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("easyr1", (0.2, 0.3, 3.0)),
        ("verl", (0.2, 0.2, 3.0)),
        ("verl_0_8", (0.2, 0.2, 3.0)),
        ("rllava", (0.2, 0.2, 3.0)),
        ("trl", (0.2, 0.2, None)),
        ("areal", (0.2, 0.2, None)),
        ("dapo", (0.2, 0.28, None)),
    ],
)
def test_a_presets_clip_holds_against_the_recipes(name: str, preset: str, expected: tuple[Any, ...]) -> None:
    assert clips(load_recipe(name, [f"+preset={preset}"]).algorithm) == expected


def test_what_the_user_says_holds_against_the_preset(tmp_path: Path) -> None:
    said = ["+preset=easyr1", "algorithm.policy_loss.clip_high=0.25"]
    assert clips(load_recipe("geometry3k", said).algorithm) == (0.2, 0.25, 3.0)
    assert clips(load_recipe("geometry3k", said[::-1]).algorithm) == (0.2, 0.25, 3.0)
    own = "defaults: [geometry3k, {preset: easyr1}, _self_]\nalgorithm: {policy_loss: {dual_clip: null}}\n"
    assert clips(recipe(tmp_path, own).algorithm) == (0.2, 0.3, None)


def test_a_recipe_with_a_preset_of_its_own_keeps_what_it_says_after_it(tmp_path: Path) -> None:
    own = "defaults: [base, {preset: easyr1}, _self_]\nalgorithm: {policy_loss: {name: ppo_clip, clip_high: 0.4}}\n"
    assert clips(recipe(tmp_path, own).algorithm) == (0.2, 0.4, 3.0)


def test_a_part_that_a_preset_names_stands_with_the_presets_options_alone() -> None:
    made = composed(load_recipe("quickstart", ["+preset=dapo"]).algorithm)
    assert made.advantage.options == {}  # the recipe has std: none
    assert load_recipe("quickstart", ["+preset=dr_grpo"]).algorithm.policy_loss == "ppo_clip"


def test_a_whole_algorithm_without_a_kl_takes_the_recipes_kl_out(tmp_path: Path) -> None:
    own = "defaults: [quickstart, _self_]\nalgorithm: {kl_in_reward: 0.1, regularizers: {kl_to_reference: 0.1}}\n"
    for preset in ("dapo", "ov_1_5_rl"):
        config = recipe(tmp_path, own, f"+preset={preset}").algorithm
        assert config.kl_in_reward is None
        assert "kl_to_reference" not in config.regularizers


def test_a_preset_holds_against_stages_too(tmp_path: Path) -> None:
    own = (
        "defaults: [base, _self_]\ndata: {train: {name: shapes}}\nreward: {rules: {number: 1.0}}\n"
        "stages:\n"
        "  - {name: a, algorithm: {policy_loss: {name: ppo_clip, clip_high: 0.5}, advantage: {name: grpo, std: none}}}\n"
        "  - {name: b, algorithm: {policy_loss: {name: gspo, clip_low: 0.1}, "
        "regularizers: {kl_to_reference: {weight: 0.1, estimator: k1}}}}\n"
    )
    a, b = (stage.algorithm for stage in resolve_stages(recipe(tmp_path, own, "+preset=easyr1")))
    assert clips(a) == (0.2, 0.3, 3.0)
    assert composed(a).advantage.options["std"] == "group"
    assert clips(b) == (0.2, 0.3, 3.0)
    assert composed(b).on_loss[0].part.call.estimator.name == "k3"
    a, b = (stage.algorithm for stage in resolve_stages(recipe(tmp_path, own, "+preset=dapo")))
    assert clips(a) == clips(b) == (0.2, 0.28, None)


def cap(estimator: Any) -> float:
    return float(estimator({"logp": torch.tensor([-30.0]), "ref_logp": torch.tensor([0.0])}))


@pytest.mark.parametrize("preset", ["verl", "verl_0_8", "easyr1", "rllava"])
@pytest.mark.parametrize("node", ["{weight: 0.1, estimator: k3}", "{weight: 0.1, estimator: {name: k3}}", "0.1"])
def test_naming_k3_keeps_its_clamp(preset: str, node: str) -> None:
    made = composed(load_recipe("quickstart", [f"+preset={preset}", KL + node]).algorithm)
    (term,) = [term for term in made.on_loss if term.name == "kl_to_reference"]
    assert cap(term.part.call.estimator) == 10
    made = composed(load_recipe("quickstart", [f"+preset={preset}", KL + "{weight: 0.1, estimator: k3+}"]).algorithm)
    (term,) = [term for term in made.on_loss if term.name == "kl_to_reference"]
    assert cap(term.part.call.estimator) == 10


def test_the_clamp_is_of_the_kl_in_the_reward_too_and_gives_way_when_it_is_set() -> None:
    node = "algorithm.kl_in_reward={weight: 0.1, estimator: k3}"
    made = composed(load_recipe("quickstart", ["+preset=verl", node]).algorithm)
    assert made.kl_in_reward is not None
    assert cap(made.kl_in_reward.part) == 10
    free = "{weight: 0.1, estimator: {name: k3, max_value: null}}"
    made = composed(load_recipe("quickstart", ["+preset=verl", KL + free]).algorithm)
    (term,) = [term for term in made.on_loss if term.name == "kl_to_reference"]
    assert cap(term.part.call.estimator) > 1e8
    made = composed(load_recipe("quickstart", ["+preset=verl", KL + "{weight: 0.1, estimator: k1}"]).algorithm)
    (term,) = [term for term in made.on_loss if term.name == "kl_to_reference"]
    assert term.part.call.estimator.name == "k1"


GSPO = {
    "verl": (0.2, 0.2, None, "token"),
    "verl_0_8": (0.2, 0.2, None, "token"),
    "rllava": (0.2, 0.2, None, "token"),
    "easyr1": (0.2, 0.3, 3.0, "sequence"),
    "trl": (0.2, 0.2, None, "sequence"),
    "areal": (0.2, 0.2, None, "sequence"),
}


@pytest.mark.parametrize("preset", GSPO)
def test_gspo_is_each_peers_own(preset: str) -> None:
    """Only EasyR1 has a dual clip in GSPO, and the clip of its PPO."""
    part = composed(
        load_recipe("geometry3k", [f"+preset={preset}", "algorithm.policy_loss=gspo"]).algorithm
    ).policy_loss
    assert tuple(part.options[name] for name in ("clip_low", "clip_high", "dual_clip", "form")) == GSPO[preset]


@pytest.mark.parametrize(("preset", "bounded"), [("verl", False), ("rllava", False), ("easyr1", True)])
def test_the_overlong_penalty_goes_on_rising_in_verl_and_stays_in_easyr1(preset: str, bounded: bool) -> None:
    node = "algorithm.regularizers.overlong={weight: 1.0, max_length: 9}"
    (term,) = composed(load_recipe("geometry3k", [f"+preset={preset}", node]).algorithm).on_reward
    assert term.part.options["bounded"] is bounded


def test_a_check_prints_what_the_preset_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["geometry3k", "+preset=easyr1"]) == 1, "the model that the recipe names is not there"
    printed = capsys.readouterr().out
    assert "preset: algorithm.policy_loss.clip_high is 0.3 (0.28 without it)." in printed
    assert "preset: algorithm.policy_loss.dual_clip is 3 (null without it)." in printed
    main(["geometry3k"])
    assert "preset:" not in capsys.readouterr().out


def changes(*overrides: str, of: str = "geometry3k") -> list[str]:
    _, found = examine(of, overrides)
    assert found.problems == found.absent, "nothing is wrong but that the recipe's model and data are not there"
    return found.changes


def test_what_a_preset_changed_is_what_is_in_force() -> None:
    assert "algorithm.policy_loss is gspo (ppo_clip without it)" in changes("+preset=gspo")
    assert "algorithm.aggregation is seq-mean-token-mean (token-mean without it)" in changes("+preset=gspo")
    assert "algorithm.filters.0 is reward_spread (not there without it)" in changes("+preset=dapo")
    kept = changes("+preset=easyr1", "algorithm.policy_loss.clip_high=0.25")
    assert not any("clip_high" in line for line in kept)
    (line,) = [line for line in changes("+preset=verl", KL + "0.1") if "max_value" in line]
    assert line == "algorithm.regularizers.kl_to_reference.estimator.max_value is 10 (null without it)"
    taken = changes("+preset=ov_1_5_rl", of="quickstart")
    assert "algorithm.regularizers.entropy is taken out (entropy without it)" in taken


def test_laying_a_preset_changes_neither_tree() -> None:
    under: dict[str, Any] = {
        "algorithm": {
            "policy_loss": {"name": "ppo_clip", "clip_high": 0.4},
            "correction": ["tis", {"name": "tis", "cap": 9.0}],
        }
    }
    preset = {
        "algorithm": {
            "conventions": {"policy_losses": {"ppo_clip": {"clip_high": 0.3}}, "corrections": {"tis": {"cap": 2.0}}}
        }
    }
    laid = lay_preset(under, preset)
    assert laid["algorithm"]["policy_loss"] == "ppo_clip"
    assert laid["algorithm"]["correction"] == ["tis", "tis"]
    assert under["algorithm"]["policy_loss"] == {"name": "ppo_clip", "clip_high": 0.4}
