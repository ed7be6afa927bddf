"""A second device without a second device: tensors that compute on the CPU and refuse the CPU's own, as a GPU's would.

Inside :func:`other_device`, ``torch.device("meta")`` is such a device. Its tensors hold their numbers, so that ``item``, masks and
every step of a training loop work. An operation that gets tensors of both devices raises :class:`DevicesMixed`, but for what
CUDA takes too: a copy, a CPU number (0 dimensions) in an elementwise operation, CPU indices into a tensor of the device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import adam, optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

OTHER = torch.device("meta")
"""The only device type beside the CPU that autograd runs in the caller's thread, without a driver."""

_CPU = torch.device("cpu")
_COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
_INDEXED = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default}


class DevicesMixed(RuntimeError):
    """Tensors of both devices met."""


class OtherTensor(Tensor):
    """A tensor of the other device around its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OtherTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=OTHER,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"OtherTensor({self.inner!r})"


def run(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Checks where the tensors are, computes on the CPU, and hands the results out on the right device."""
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, OtherTensor)]
    here = [tensor for tensor in tensors if not isinstance(tensor, OtherTensor)]
    assert not any(tensor.is_meta for tensor in here), f"{func} got a tensor that torch made without its numbers"
    if there and here and func not in _COPIES:
        _refuse(func, args, here)
    if (there or (kwargs.get("device") or _CPU).type == OTHER.type) and any(
        isinstance(leaf, torch.Generator) for leaf in tree_flatten((args, kwargs))[0]
    ):
        raise DevicesMixed(f"{func} got a generator of the CPU for tensors of the other device.")
    if func is torch.ops.aten._fused_sdp_choice.default:
        return 0  # attention by its formula: the CPU's own kernels are not asked for by the name of another device
    asked = kwargs.get("device")
    outside = asked.type == OTHER.type if asked is not None else bool(there)
    if func is torch.ops.aten.copy_.default:
        outside = isinstance(args[0], OtherTensor)
    plain = {**kwargs, "device": _CPU} if asked is not None else kwargs
    own = {id(tensor.inner): tensor for tensor in there} | {id(tensor): tensor for tensor in here}
    result = func(*tree_map(_inner, args), **tree_map(_inner, plain))

    def hand_out(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return own.get(id(value)) if id(value) in own else (OtherTensor(value) if outside else value)

    return tree_map(hand_out, result)


def _refuse(func: Any, args: Any, here: list[Tensor]) -> None:
    """Raises unless a GPU would take these tensors of the CPU beside its own."""
    if func in _INDEXED and isinstance(args[0], OtherTensor):
        given = args[2:3] if len(args) > 2 else ()
        here = [tensor for tensor in here if any(tensor is value for value in given)]
        if all(tensor.dim() == 0 for tensor in here):
            return
    elementwise = torch.Tag.pointwise in func.tags
    writes = func._schema.is_mutable and not isinstance(args[0], (OtherTensor, list, tuple))
    if elementwise and not writes and all(tensor.dim() == 0 for tensor in here):
        return
    shapes = ", ".join(str(list(tensor.shape)) for tensor in here)
    raise DevicesMixed(f"{func} got tensors of the CPU ({shapes}) beside tensors of the other device.")


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, OtherTensor) else value


def _number(value: Any) -> Any:
    return torch.tensor(value).to(OTHER) if isinstance(value, (bool, int, float)) else value


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Where torch would make a tensor of "meta" without its numbers from numbers of Python, these are moved there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.tolist:
            return args[0].cpu().tolist()
        if func is Tensor.numpy and isinstance(args[0], OtherTensor):
            raise DevicesMixed("numpy can't read a tensor of the other device; move it with .cpu() first.")
        if func in (torch.where, Tensor.where) and any(isinstance(value, OtherTensor) for value in args):
            return func(*(_number(value) for value in args), **kwargs)
        if func is Tensor.new_tensor and isinstance(args[0], OtherTensor):
            return torch.tensor(args[1], **{"dtype": args[0].dtype, **kwargs}).to(OTHER)
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device is not None and torch.device(device) == OTHER:
            return func(*args, **{**kwargs, "device": "cpu"}).to(OTHER)
        return func(*args, **kwargs)


@contextlib.contextmanager
def other_device() -> Iterator[torch.device]:
    """A block in which the device that it gives is a device of its own."""
    asked, swap = torch.is_autocast_enabled, torch.__future__.get_swap_module_params_on_conversion()
    known = optimizer._get_fused_kernels_supported_devices

    def is_autocast_enabled(device_type: str = "cpu") -> bool:
        return asked("cpu" if device_type == OTHER.type else device_type)

    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "is_autocast_enabled", is_autocast_enabled)
        patch.setattr(torch, "inference_mode", torch.no_grad)  # wrapped tensors can't be viewed in inference mode
        for module in (adam, optimizer):
            patch.setattr(module, "_get_fused_kernels_supported_devices", lambda: [*known(), OTHER.type], raising=False)
        torch.__future__.set_swap_module_params_on_conversion(
            True
        )  # a moved parameter stays the object it is, ties too
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swap)
        stack.enter_context(_Functions())
        stack.enter_context(_Dispatch())
        yield OTHER


def devices(module: nn.Module) -> set[str]:
    """Types of the devices of a module's parameters and buffers."""
    return {tensor.device.type for tensor in (*module.parameters(), *module.buffers())}
