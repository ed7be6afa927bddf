"""The patch embedding of towers that take cut patches: a product, not a convolution."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class PatchProduct(nn.Module):
    """Embeds patches [N, C * T * P * P] by the weights of a convolution whose kernel is exactly one patch.

    The same numbers to rounding, several times quicker forward and back; the parameters keep their names and shapes.

    Args:
        proj: the convolution, whose stride is its kernel.
    """

    def __init__(self, proj: nn.Conv3d) -> None:
        super().__init__()
        self.proj = proj

    def forward(self, patches: Tensor) -> Tensor:
        """[N, H] embeddings."""
        weight = self.proj.weight
        return F.linear(patches.to(weight.dtype), weight.flatten(1), self.proj.bias)
