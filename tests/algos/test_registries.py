import subprocess
import sys

import pytest
import torch
from torch import Tensor

import rlvlm.algos
from rlvlm.algos import registries
from rlvlm.errors import RegistryError


@pytest.mark.parametrize(
    ("registry", "names"),
    [
        (
            registries.ADVANTAGES,
            "gae grpo grpo_passk rloo remax opo gpg reinforce_plus_plus reinforce_plus_plus_baseline gdpo",
        ),
        (
            registries.POLICY_LOSSES,
            "ppo_clip decoupled_clip gspo gpg reinforce clip_cov kl_cov geo_mean cispo sapo dppo_tv dppo_kl",
        ),
        (registries.VALUE_LOSSES, "clipped plain"),
        (registries.KL_ESTIMATORS, "k1 abs k2 k3 k1+ abs+ k2+ k3+"),
        (registries.REGULARIZERS, "kl_to_reference entropy length overlong ngram_repetition"),
        (registries.CORRECTIONS, "tis icepop ratio_mask rejection areal_rejection"),
        (
            registries.AGGREGATIONS,
            "token-mean token-sum seq-mean-token-sum seq-mean-token-mean seq-mean-token-sum-norm prompt-mean",
        ),
        (registries.FILTERS, "reward_spread mean_window length"),
        (registries.CONTROLLERS, "fixed adaptive"),
    ],
    ids=lambda value: getattr(value, "group", ""),
)
def test_every_part_is_found_by_name_and_says_what_it_is(registry: registries.Registry, names: str) -> None:
    own = registry.own_entries()
    assert [entry.name for entry in own] == sorted(names.split())
    for entry in own:
        assert entry.summary.endswith((".", ":", ")")), entry.name


def test_a_part_that_reads_what_there_is_not_is_refused() -> None:
    @registries.register_advantage("blind")
    def blind(reward: Tensor) -> Tensor:
        return reward

    try:
        with pytest.raises(RegistryError, match=r"reads 'reward', which is neither .*\(did you mean 'rewards'\?\)"):
            registries.ADVANTAGES.build("blind")
    finally:
        del registries.ADVANTAGES._entries["blind"]


def test_an_advantage_can_not_read_the_pass() -> None:
    @registries.register_advantage("peeking")
    def peeking(logp: Tensor) -> Tensor:
        return logp

    try:
        with pytest.raises(RegistryError, match="reads 'logp', which is neither a batch field nor an output"):
            registries.ADVANTAGES.build("peeking")
    finally:
        del registries.ADVANTAGES._entries["peeking"]


def test_a_name_is_taken_once() -> None:
    with pytest.raises(RegistryError, match=r"advantage 'grpo' is registered already by rlvlm\.algos"):
        registries.register_advantage("grpo")(lambda rewards: torch.zeros(1))


def test_settings_load_no_torch() -> None:
    code = "import sys, rlvlm.algorithm_config, rlvlm.algos; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_package_hands_its_names_on() -> None:
    assert set(rlvlm.algos.__all__) >= {"register_advantage", "register_filter", "TokenLoss", "Correction"}
    for name in rlvlm.algos.__all__:
        assert getattr(rlvlm.algos, name) is not None
    with pytest.raises(AttributeError, match=r"did you mean 'register_kl'\?"):
        _ = rlvlm.algos.register_kls
