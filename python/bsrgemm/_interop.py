"""Which library an array belongs to, and that library's own way of doing what bsrgemm needs.

An array of PyTorch, CuPy or JAX can only reach this module when its library has been imported
already, so they are looked up in ``sys.modules`` and never imported here. Everything else that can
be imported (``__dlpack__``, ``__cuda_array_interface__``, the buffer protocol) is "foreign": its
results are NumPy arrays on the host and :class:`bsrgemm.DeviceArray` on a GPU.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _core
from ._dtypes import ML_DTYPES, check_dtype, dtype_name, numpy_dtype
from ._forward_mode import check_tangent, in_dual_level
from ._kinds import a_kind_of
from ._library import NUMPY, ArrayModule, Library, without_repeats


class _CuPy(ArrayModule):
    name = "cupy"

    def empty(self, shape: tuple[int, ...], like: Any, name: str, dtype: str | None = None) -> Any:
        with like.device:
            return self.xp.empty(shape, dtype or like.dtype)

    def current_stream(self, x: Any) -> int | None:
        with x.device:
            return self.xp.cuda.get_current_stream().ptr

    def copy(self, x: Any) -> Any:  # which cupy.copy makes on the current device
        with x.device:
            return super().copy(x)

    def astype(self, x: Any, dtype: str) -> Any:
        with x.device:
            return super().astype(x, dtype)

    def transpose_blocks(self, blocks: Any, order: np.ndarray) -> Any:
        with blocks.device:
            return super().transpose_blocks(blocks, order)

    def scatter_blocks(
        self, blocks: Any, rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int]
    ) -> Any:
        with blocks.device:
            return super().scatter_blocks(blocks, rows, cols, shape)

    def gather_blocks(self, dense: Any, blocksize: tuple[int, int]) -> tuple[Any, np.ndarray]:
        with dense.device:
            return super().gather_blocks(dense, blocksize)

    def any_nonzero(self, data: Any, blocks: np.ndarray, rows: slice, cols: slice) -> bool:
        with data.device:
            return super().any_nonzero(data, blocks, rows, cols)

    def to_host(self, x: Any) -> np.ndarray:
        return x.get()

    def from_host(self, x: np.ndarray, like: Any) -> Any:
        with like.device:
            return self.xp.asarray(x)

    def to_device(self, x: Any, device: str) -> Any:
        if device == "cpu":
            return x.get()
        with self.xp.cuda.Device(device_index(device)):
            return self.xp.array(x)


class _Torch(Library):
    name = "torch"

    @property
    def torch(self) -> Any:
        return sys.modules["torch"]

    def shape(self, x: Any, name: str) -> tuple[int, ...]:
        try:
            return tuple(x.shape)
        except RuntimeError:  # nested tensors have none
            self.check_layout(x, name)
            raise

    def check_layout(self, x: Any, name: str) -> None:
        """Raise TypeError of a sparse or nested tensor, whose memory says something else."""
        if x.is_nested:
            raise TypeError(
                f"{name} is a nested tensor; accepted: one that is not, such as "
                f"{name}.to_padded_tensor(0.0)"
            )
        if x.layout is not sys.modules["torch"].strided:
            raise TypeError(
                f"{name} is a torch tensor of layout {x.layout}; accepted: torch.strided"
            )

    def importable(self, x: Any, name: str, differentiated: bool = True) -> Any:
        torch = sys.modules["torch"]
        self.check_layout(x, name)
        if x.is_neg():
            raise TypeError(
                f"{name} is a torch tensor with the negative bit set; accepted: "
                f"{name}.resolve_neg()"
            )
        if differentiated and in_dual_level():
            check_tangent(x, name)
        if not x.requires_grad:
            return x
        if differentiated and torch.is_grad_enabled():
            raise TypeError(
                f"{name} requires grad, and autograd is not supported by this call; pass "
                f"{name}.detach() or call it under torch.no_grad()"
            )
        return x.detach()

    def written(self, x: Any) -> None:
        # Who has saved the tensor for a gradient is told that it has changed.
        sys.modules["torch"].autograd.graph.increment_version(x)

    def empty(self, shape: tuple[int, ...], like: Any, name: str, dtype: str | None = None) -> Any:
        torch = sys.modules["torch"]
        if dtype is None and type(like) is torch.Tensor:
            return like.new_empty(shape)  # in half the time
        wanted = like.dtype if dtype is None else getattr(torch, dtype)
        return torch.empty(shape, dtype=wanted, device=like.device)

    def current_stream(self, x: Any) -> int | None:
        return self.torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else None

    def stream_of_work(self, x: Any, stream: Any) -> int | None:
        # Since PyTorch 2.10 the extension can ask, in a tenth of the time.
        if stream is None and hasattr(type(x), "__dlpack_c_exchange_api__"):
            return None
        return super().stream_of_work(x, stream)

    def to_host(self, x: Any) -> np.ndarray:
        x = x.detach().cpu()
        name = dtype_name(x.dtype) if x.dtype.is_floating_point else ""
        if name in ML_DTYPES:
            bits = self.torch.int16 if x.dtype.itemsize == 2 else self.torch.uint8
            return x.view(bits).numpy().view(numpy_dtype(name))
        return x.numpy()

    def from_host(self, x: np.ndarray, like: Any) -> Any:
        if not x.flags.writeable:  # torch has no read-only tensors
            x = x.copy()
        if x.dtype.name in ML_DTYPES:
            bits = self.torch.as_tensor(x.view(f"i{x.dtype.itemsize}"), device=like.device)
            return bits.view(getattr(self.torch, x.dtype.name))
        return self.torch.as_tensor(x, device=like.device)

    def to_device(self, x: Any, device: str) -> Any:
        if device != "cpu" and device_index(device) >= (count := self.torch.cuda.device_count()):
            raise _core.DeviceUnavailableError(
                f"device is {device} and the values are torch tensors, but torch has {count} GPUs "
                "in this process"
            )
        return x.to(device)

    def copy(self, x: Any) -> Any:
        return x.detach().clone()

    def astype(self, x: Any, dtype: str) -> Any:
        return x.detach().to(getattr(self.torch, dtype), copy=True)

    def transpose_blocks(self, blocks: Any, order: np.ndarray) -> Any:
        if blocks.dtype.itemsize == 1:  # torch has no selection of 8-bit floats
            return self.transpose_blocks(blocks.float(), order).to(blocks.dtype)
        order = self.torch.as_tensor(order, device=blocks.device)
        return blocks.detach().index_select(0, order).transpose(1, 2).contiguous()

    def scatter_blocks(
        self, blocks: Any, rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int]
    ) -> Any:
        if blocks.dtype.itemsize == 1:  # nor sums of them
            return self.scatter_blocks(blocks.float(), rows, cols, shape).to(blocks.dtype)
        _, height, width = blocks.shape
        down, across = -(-shape[0] // height), -(-shape[1] // width)
        whole = (down * height, across * width)
        dense = self.torch.zeros(whole, dtype=blocks.dtype, device=blocks.device)
        tiles = dense.view(down, height, across, width)
        for chosen in without_repeats(rows, cols):
            at_rows = self.torch.as_tensor(rows[chosen], device=blocks.device)
            at_cols = self.torch.as_tensor(cols[chosen], device=blocks.device)
            if isinstance(chosen, slice):
                tiles[at_rows, :, at_cols, :] = blocks.detach()
            else:
                tiles[at_rows, :, at_cols, :] += blocks.detach()[chosen]
        return dense[: shape[0], : shape[1]].contiguous()

    def gather_blocks(self, dense: Any, blocksize: tuple[int, int]) -> tuple[Any, np.ndarray]:
        if dense.dtype.itemsize == 1:  # nor comparisons of them
            blocks, mask = self.gather_blocks(dense.float(), blocksize)
            return blocks.to(dense.dtype), mask
        height, width = blocksize
        down, across = dense.shape
        rows, cols = -(-down // height), -(-across // width)
        pad = self.torch.nn.functional.pad
        dense = pad(dense.detach(), (0, cols * width - across, 0, rows * height - down))
        tiles = dense.reshape(rows, height, cols, width)
        mask = (tiles != 0).any(dim=3).any(dim=1)
        blocks = tiles.permute(0, 2, 1, 3)[mask].contiguous()
        return blocks, self.to_host(mask)

    def any_nonzero(self, data: Any, blocks: np.ndarray, rows: slice, cols: slice) -> bool:
        data = data.detach()
        if data.dtype.itemsize == 1:  # nor selections
            data = data.float()
        index = self.torch.as_tensor(blocks, device=data.device)
        return bool((data[..., rows, cols].index_select(-3, index) != 0).any())


class _OwnDevice(Library):
    name = "bsrgemm"

    def empty(self, shape: tuple[int, ...], like: Any, name: str, dtype: str | None = None) -> Any:
        return _core.DeviceArray.empty(shape, dtype or like.dtype, like.device)

    def to_host(self, x: Any) -> np.ndarray:
        return x.to_host()

    def from_host(self, x: np.ndarray, like: Any) -> Any:
        return _core.DeviceArray.from_host(x, like.device)

    def to_device(self, x: Any, device: str) -> Any:
        host = x.to_host()
        return host if device == "cpu" else _core.DeviceArray.from_host(host, device)


class _Foreign(Library):
    name = "foreign"

    def shape(self, x: Any, name: str) -> tuple[int, ...]:
        return _core.describe(x, name).shape

    def empty(self, shape: tuple[int, ...], like: Any, name: str, dtype: str | None = None) -> Any:
        info = _core.describe(like, name)
        wanted = dtype or info.dtype
        if info.device == "cpu":
            check_dtype(wanted, name)
            return np.empty(shape, numpy_dtype(wanted))
        return _core.DeviceArray.empty(shape, wanted, info.device)

    def to_host(self, x: Any) -> np.ndarray:
        lent = hasattr(x, "__cuda_array_interface__") or hasattr(x, "__dlpack__")
        if hasattr(x, "__array__") or not lent:
            return np.asarray(x)
        where = _core.describe(x).device
        if where != "cpu":
            raise TypeError(
                f"{a_kind_of(x)} on {where} is needed on the host, to which it has no way; "
                "accepted here: an array of NumPy, torch or CuPy or a bsrgemm.DeviceArray"
            )
        return np.from_dlpack(x) if hasattr(x, "__dlpack__") else np.asarray(x)

    def any_nonzero(self, data: Any, blocks: np.ndarray, rows: slice, cols: slice) -> bool:
        # There is no way to the host from a GPU.
        on_host = _core.describe(data, "data").device == "cpu"
        return on_host and super().any_nonzero(data, blocks, rows, cols)

    def from_host(self, x: np.ndarray, like: Any) -> Any:
        device = _core.describe(like).device
        return x if device == "cpu" else _core.DeviceArray.from_host(x, device)

    def to_device(self, x: Any, device: str) -> Any:
        host = self.to_host(x)
        return host if device == "cpu" else _core.DeviceArray.from_host(host, device)


class _Jax(_Foreign):
    """Immutable arrays, which are made of finished results."""

    name = "jax"

    @property
    def jax(self) -> Any:
        return sys.modules["jax"]

    def importable(self, x: Any, name: str, differentiated: bool = True) -> Any:
        if isinstance(x, self.jax.core.Tracer):
            raise TypeError(
                f"{name} is {a_kind_of(x)}, which has no memory: JAX traces the code that "
                "calls this; accepted: a concrete array. jax.pure_callback calls bsrgemm from "
                "traced code, and jax.custom_vjp gives that a gradient"
            )
        return x

    def writable(self, x: Any, name: str) -> Any:
        raise TypeError(
            f"{name} is a jax.Array, which is immutable; accepted: none, and a new jax.Array is "
            "returned, or a writable array of another library on its device"
        )

    def finished(self, result: Any, like: Any) -> Any:
        if isinstance(result, np.ndarray):
            return self.from_host(result, like)
        # JAX and its allocator order memory by JAX's own stream alone. So the operands have to have
        # been read when they can be dropped, and the result has to be JAX's memory: that of others
        # is given back while work that reads it may still be running, and cannot be donated.
        with self._all_bits(result.dtype):
            view = self.jax.dlpack.from_dlpack(result)
            return self.jax.numpy.array(view, copy=True).block_until_ready()

    def shape(self, x: Any, name: str) -> tuple[int, ...]:
        return tuple(x.shape)

    def from_host(self, x: np.ndarray, like: Any) -> Any:
        with self._all_bits(x.dtype.name):
            return self.jax.device_put(x, like.device)

    def _all_bits(self, dtype: str) -> contextlib.AbstractContextManager[Any]:
        """In which JAX keeps arrays of 64 bits: by default it would round them to 32."""
        return self.jax.enable_x64(True) if dtype.endswith("64") else contextlib.nullcontext()


TORCH = _Torch()
CUPY = _CuPy()
JAX = _Jax()
OWN_DEVICE = _OwnDevice()
FOREIGN = _Foreign()


# Of the arrays' own types: looking for the libraries that are imported takes ten times as long.
_OF_TYPE: dict[type, Library] = {np.ndarray: NUMPY, _core.DeviceArray: OWN_DEVICE}


def library_of(x: Any) -> Library:
    """The library whose array ``x`` is."""
    found = _OF_TYPE.get(type(x))
    return _search_library(x) if found is None else found


def importable(names: tuple[str, ...], *arrays: Any) -> Sequence[Any]:
    """Each as its library's ``importable`` makes it; ``names`` are for errors."""
    if not in_dual_level() and _core.are_usual(*arrays):
        return arrays  # as they all do, in a fifth of the time
    return [library_of(x).importable(x, name) for name, x in zip(names, arrays, strict=True)]


def handed_back(made: Any, like: Any, out: Any) -> Any:
    """What a call returns: ``out`` if that was given, otherwise what was made for ``like``."""
    if out is None:
        return library_of(like).finished(made, like)
    library_of(out).written(out)
    return out


def _search_library(x: Any) -> Library:
    if isinstance(x, np.ndarray):
        return NUMPY
    for library, type_name in ((TORCH, "Tensor"), (CUPY, "ndarray"), (JAX, "Array")):
        array_type = getattr(sys.modules.get(library.name), type_name, None)
        if array_type is not None and isinstance(x, array_type):
            if type(x) is array_type:
                _OF_TYPE[array_type] = library
            return library
    return FOREIGN


def is_scipy_sparse(x: Any) -> bool:
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and sparse.issparse(x)


def device_name(device: Any) -> str:
    """ "cpu" or "cuda:<index>" from a string or a torch device; "cuda" means "cuda:0"."""
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", str(device))
    if match is None:
        raise ValueError(f"device is {str(device)!r}; accepted: 'cpu', 'cuda' or 'cuda:<index>'")
    return "cpu" if match.string == "cpu" else f"cuda:{int(match[1] or 0)}"


def device_index(device: str) -> int:
    return int(device.partition(":")[2] or 0)
