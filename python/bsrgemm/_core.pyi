"""The compiled core. The package bsrgemm is its public face; names here may change.

Arrays in (Importable) are NumPy arrays, DeviceArray, and objects with __dlpack__,
__cuda_array_interface__ or the buffer protocol. Streams are CUDA stream handles; 0 and 1 are the
legacy default stream.
"""

from collections.abc import Sequence
from typing import Any, Literal, SupportsFloat, SupportsIndex, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

Importable: TypeAlias = Any

__version__: str
built_with_cuda: bool

class DeviceUnavailableError(RuntimeError): ...

@final
class ArrayInfo(tuple[str, tuple[int, ...], tuple[int, ...], str, int, bool]):
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def device(self) -> str: ...
    @property
    def pointer(self) -> int: ...
    @property
    def readonly(self) -> bool: ...
    __match_args__ = ("dtype", "shape", "strides", "device", "pointer", "readonly")

@final
class Structure:
    def __new__(
        cls,
        indices: Importable,
        indptr: Importable,
        shape: Sequence[SupportsIndex],
        blocksize: Sequence[SupportsIndex],
        check: bool = True,
    ) -> Structure: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def blocksize(self) -> tuple[int, int]: ...
    @property
    def nnzb(self) -> int: ...
    @property
    def longest_row(self) -> int: ...
    @property
    def is_transposed(self) -> bool: ...
    @property
    def indices(self) -> NDArray[np.int32]: ...
    @property
    def indptr(self) -> NDArray[np.int64]: ...
    @property
    def order(self) -> NDArray[np.int64] | None: ...
    def transposed(self) -> Structure: ...
    def contents(self, indices_size: int, indptr_size: int, /) -> tuple[bytes, bytes]: ...
    def explain(
        self,
        n: SupportsIndex,
        dtype: str,
        chip: dict[str, Any] | None = None,
        precision: str = "ieee",
        by_columns: bool = False,
    ) -> dict[str, Any]: ...
    def explain_sampled(
        self, k: SupportsIndex, dtype: str, chip: dict[str, Any] | None = None
    ) -> dict[str, Any]: ...
    def explain_sparse(
        self, b: Structure, dtype: str, chip: dict[str, Any] | None = None
    ) -> dict[str, Any]: ...

@final
class DynamicStructure:
    def __new__(
        cls,
        shape: Sequence[SupportsIndex],
        blocksize: Sequence[SupportsIndex],
        capacity: SupportsIndex,
        device: str = "cuda:0",
        chip: dict[str, Any] | None = None,
        memory: int | None = None,
    ) -> DynamicStructure: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def blocksize(self) -> tuple[int, int]: ...
    @property
    def capacity(self) -> int: ...
    @property
    def is_transposed(self) -> bool: ...
    @property
    def pointers(self) -> tuple[int, int, int]: ...
    @property
    def bytes(self) -> int: ...
    def transposed(self) -> DynamicStructure: ...
    def read(
        self, stream: SupportsIndex, /
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], int]: ...

@final
class DeviceArray:
    @classmethod
    def empty(
        cls,
        shape: SupportsIndex | Sequence[SupportsIndex],
        dtype: str,
        device: str = "cuda:0",
        stream: SupportsIndex = 0,
    ) -> DeviceArray: ...
    @classmethod
    def from_host(
        cls, array: Importable, device: str = "cuda:0", stream: SupportsIndex = 0
    ) -> DeviceArray: ...
    def to_host(self) -> NDArray[Any]: ...
    def reshape(self, *shape: SupportsIndex | Sequence[SupportsIndex]) -> DeviceArray: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def ndim(self) -> int: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

def matmul(
    structure: Structure | DynamicStructure,
    values: Importable,
    x: Importable,
    out: Importable,
    c: Importable | None = None,
    alpha: SupportsFloat = 1.0,
    beta: SupportsFloat = 0.0,
    stream: SupportsIndex | None = 0,
    family: str = "auto",
    right: bool = False,
    row_scale: Importable | None = None,
    col_scale: Importable | None = None,
    row_bias: Importable | None = None,
    col_bias: Importable | None = None,
    activation: str | None = None,
    precision: str = "ieee",
    values_scale: Importable | None = None,
    x_scale: Importable | None = None,
    chip: dict[str, Any] | None = None,
) -> str | None: ...
def try_matmul(
    structure: Structure | DynamicStructure,
    values: Any,
    dense: Any,
    right: bool,
    c: Any,
    alpha: Any,
    beta: Any,
    bias: Any,
    activation: str | None,
    row_scale: Any,
    col_scale: Any,
    out: Any,
    precision: str,
    /,
) -> Any: ...
def try_linear(
    structure: Structure, values: Any, input: Any, bias: Any, activation: str | None, /
) -> Any: ...
def are_usual(*arrays: Any) -> bool: ...
def try_sampled(
    structure: Structure,
    a: Any,
    b: Any,
    values: Any,
    alpha: Any,
    beta: Any,
    dtype: str,
    device: str,
    /,
) -> Any: ...
def sampled_matmul(
    structure: Structure | DynamicStructure,
    a: Importable,
    b: Importable,
    out: Importable,
    values: Importable | None = None,
    alpha: SupportsFloat = 1.0,
    beta: SupportsFloat = 0.0,
    stream: SupportsIndex | None = 0,
    family: str = "auto",
    chip: dict[str, Any] | None = None,
) -> str | None: ...
def matmul_sparse(
    structure: Structure,
    values: Importable,
    b_structure: Structure,
    b_values: Importable,
    out: Importable,
    c: Importable | None = None,
    alpha: SupportsFloat = 1.0,
    beta: SupportsFloat = 0.0,
    stream: SupportsIndex | None = 0,
    family: str = "auto",
    chip: dict[str, Any] | None = None,
) -> str | None: ...
def attention(
    q: Importable,
    k: Importable,
    v: Importable,
    out: Importable,
    lse: Importable | None = None,
    masks: tuple[Structure, ...] | None = None,
    mask_shape: Sequence[SupportsIndex] = (1, 1),
    scale: SupportsFloat = 1.0,
    softcap: SupportsFloat = 0.0,
    diagonal: SupportsIndex = 0,
    left: SupportsIndex = -1,
    right: SupportsIndex = -1,
    layout: str = "bhsd",
    stream: SupportsIndex | None = 0,
    family: str = "auto",
    q_descale: Importable | float | None = None,
    k_descale: Importable | float | None = None,
    v_descale: Importable | float | None = None,
    columns: Importable | None = None,
    numbers: tuple[int, ...] | None = None,
    cu_seqlens_q: Importable | None = None,
    cu_seqlens_k: Importable | None = None,
    max_seqlen_q: SupportsIndex = 9223372036854775807,
    max_seqlen_k: SupportsIndex = 9223372036854775807,
    align_last: bool = False,
    chip: dict[str, Any] | None = None,
) -> str | None: ...
def topk(
    scores: Importable,
    columns: Importable,
    numbers: tuple[int, ...],
    stream: SupportsIndex | None = 0,
) -> None: ...
def softmax(
    structure: Structure,
    values: Importable,
    out: Importable,
    scale: SupportsFloat = 1.0,
    stream: SupportsIndex | None = 0,
    chip: dict[str, Any] | None = None,
) -> str | None: ...
def pattern_update(
    structure: DynamicStructure, mask: Importable, stream: SupportsIndex | None = 0
) -> None: ...
def pattern_topk(
    structure: DynamicStructure,
    scores: Importable,
    k: SupportsIndex,
    stream: SupportsIndex | None = 0,
) -> None: ...
def pattern_gather(
    structure: DynamicStructure,
    dense: Importable,
    out: Importable,
    stream: SupportsIndex | None = 0,
) -> None: ...
def describe(obj: Importable, name: str = "array") -> ArrayInfo: ...
def set_num_threads(n: int, /) -> None: ...
def get_num_threads() -> int: ...
def cpu_isa() -> Literal["avx512_bf16", "avx512", "avx2", "generic"]: ...
def cuda_devices() -> list[dict[str, Any]]: ...
def synchronize(device: str, stream: SupportsIndex = 0) -> None: ...
def probe_wgmma(
    dtype: str,
    transpose_a: bool,
    transpose_b: bool,
    descriptor_a: int,
    descriptor_b: int,
    image_a: bytes,
    image_b: bytes,
    device: str = "cuda:0",
) -> NDArray[np.float32]: ...
