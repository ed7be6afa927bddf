import pytest
import torch

from rlvlm.algos.registries import REGULARIZERS
from rlvlm.errors import RegistryError
from tests.algos.drawn import draw


def test_kl_to_reference_is_the_chosen_estimate() -> None:
    fields = draw(0)
    difference = fields["logp"] - fields["ref_logp"]
    got = REGULARIZERS.build({"name": "kl_to_reference", "estimator": "k2"})(fields)
    assert torch.allclose(got, difference**2 / 2)
    capped = REGULARIZERS.build({"name": "kl_to_reference", "estimator": {"name": "k3", "max_value": 0.01}})(fields)
    assert capped.max() <= 0.01
    assert REGULARIZERS.build("kl_to_reference").needs == ("logp", "ref_logp")


def test_an_unknown_estimator_is_named_when_it_is_built() -> None:
    with pytest.raises(RegistryError, match=r"no KL estimator called 'k4' \(there are: abs"):
        REGULARIZERS.build({"name": "kl_to_reference", "estimator": "k4"})


def test_the_entropy_penalty_is_minus_the_entropy() -> None:
    fields = draw(1)
    assert REGULARIZERS.build("entropy")(fields).equal(-fields["entropy"])
