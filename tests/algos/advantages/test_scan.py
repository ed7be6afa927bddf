import pytest
import torch

from rlvlm.algos.advantages.scan import Scan, scan_with_decays


@pytest.mark.parametrize("length", [0, 1, 5, 32, 33, 1024, 1025])
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99, 1.0])
def test_the_chunked_scan_equals_the_recursion(length: int, decay: float) -> None:
    values = torch.randn(3, length, dtype=torch.float64, generator=torch.Generator().manual_seed(length))
    after = Scan(decay, values).after(values, torch.ones(3, length, dtype=torch.bool))
    y = torch.zeros(3, dtype=torch.float64)
    for t in reversed(range(length)):
        assert torch.allclose(after[:, t], y, atol=1e-11)
        y = values[:, t] + decay * y


def test_decays_of_their_own_for_each_entry() -> None:
    g = torch.Generator().manual_seed(0)
    values, decays = (
        torch.randn(3, 77, dtype=torch.float64, generator=g),
        torch.rand(3, 77, dtype=torch.float64, generator=g),
    )
    got = scan_with_decays(values, decays)
    y = torch.zeros(3, dtype=torch.float64)
    for t in reversed(range(77)):
        y = values[:, t] + decays[:, t] * y
        assert torch.allclose(got[:, t], y, atol=1e-12)
