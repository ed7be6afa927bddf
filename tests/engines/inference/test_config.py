"""Sampling parameters refuse what can't be meant; capabilities refuse what an engine does not declare."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlvlm.engines.inference.base import build_inference_engine, check_inference_engine
from rlvlm.engines.inference.config import Capabilities, SamplingParams, check_params
from rlvlm.errors import ConfigError, EngineError, RegistryError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", True),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_p", 1.2),
        ("top_k", -1),
        ("top_k", 1.5),
        ("max_new_tokens", 0),
        ("stop", "\n"),
        ("stop", [""]),
        ("stop", [3]),
        ("stop_ids", [-1]),
        ("stop_ids", ["a"]),
        ("seed", 0.5),
    ],
)
def test_a_value_outside_its_range_is_one_sentence_that_names_it(name, value):
    with pytest.raises(ConfigError, match=f"'{name}'") as caught:
        SamplingParams(**{name: value})
    assert str(caught.value).count("\n") == 0


def test_lists_from_yaml_become_tuples_so_that_params_can_be_keys():
    params = SamplingParams(stop=["a"], stop_ids=[1])
    assert (params.stop, params.stop_ids) == (("a",), (1,))
    assert hash(params) == hash(SamplingParams(stop=("a",), stop_ids=(1,)))


@pytest.mark.parametrize("params", [SamplingParams(greedy=True, temperature=0.7), SamplingParams(temperature=0)])
def test_greedy_rows_are_recorded_at_temperature_one(params):
    assert params.is_greedy
    assert params.logp_temperature == 1.0


def test_sampled_rows_are_recorded_at_their_temperature():
    assert SamplingParams(temperature=0.7).logp_temperature == 0.7


def test_an_undeclared_capability_is_refused_by_name_and_a_misspelt_one_gets_the_nearest():
    with pytest.raises(EngineError, match=r"'toy' was asked for 'asynchronous', but declares sleeps"):
        Capabilities(sleeps=True).require("toy", "sleeps", "asynchronous")
    with pytest.raises(EngineError, match="did you mean 'sleeps'"):
        Capabilities().require("toy", "sleep")


def test_an_engine_that_reports_log_probs_after_the_cut_refuses_cuts_but_not_greedy():
    after_cut = Capabilities()
    for cut in (SamplingParams(top_p=0.9), SamplingParams(top_k=5)):
        with pytest.raises(EngineError, match="after the top-p/top-k cut only"):
            check_params("toy", after_cut, cut)
        check_params("toy", Capabilities(logp_before_cut=True), cut)
    check_params("toy", after_cut, SamplingParams(top_k=5, greedy=True))


def test_hf_states_at_check_time_what_it_can_not_do():
    check_inference_engine("hf", params=SamplingParams(top_p=0.9, top_k=3))
    for need in ("asynchronous", "interrupts"):
        with pytest.raises(EngineError, match=f"'hf' was asked for '{need}'"):
            check_inference_engine("hf", needs=[need])


def test_a_wrong_engine_name_or_option_gets_the_nearest():
    with pytest.raises(RegistryError, match="did you mean 'hf'"):
        check_inference_engine("hff")
    with pytest.raises(RegistryError, match="did you mean 'cache_tokens'"):
        check_inference_engine({"name": "hf", "cache_token": 3})
    with pytest.raises(RegistryError, match="reads 'policy'"):
        build_inference_engine("hf")


def test_config_and_protocol_load_no_torch():
    code = "import sys, rlvlm.engines.inference.config, rlvlm.engines.inference.base; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_all_that_is_wrong_with_sampling_comes_at_once():
    with pytest.raises(ConfigError) as caught:
        SamplingParams(n=0, temperature=-1.0, top_p=3.0, top_k=-2, max_new_tokens=0, stop=("",), stop_ids=(-1,))  # type: ignore[arg-type]
    names = ("n", "temperature", "top_p", "top_k", "max_new_tokens", "stop", "stop_ids")
    assert [sum(f"'{name}'" in problem for problem in caught.value.problems) for name in names] == [1] * len(names)
