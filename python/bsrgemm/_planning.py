"""What a ``bsr_array`` says of its pattern and of products with it."""

from __future__ import annotations

import operator
from typing import Any

from . import _core
from ._batch import check_single
from ._interop import device_index
from ._kinds import a_kind_of
from ._library import BlockSparse
from ._matmul import check_precision
from ._plan import Plan
from ._spy import draw

# Of a GPU, what the driver tells that plans use.
CHIP = ("name", "sm_arch", "sm_count", "hbm_bytes_per_s")


def chip_of(gpu: dict[str, Any]) -> dict[str, Any]:
    """For plans on a GPU, an entry of ``_core.cuda_devices()``."""
    return {key: gpu[key] for key in CHIP}


class Planning:
    """The part of ``bsr_array`` that plans products and shows the pattern."""

    __slots__ = ()
    _structure: _core.Structure
    _dtype: str
    _device: str

    def plan(
        self, n: int | BlockSparse, *, chip: dict[str, Any] | None = None, precision: str = "ieee"
    ) -> Plan:
        """How a GPU is going to multiply the matrix with ``n`` columns, and how fast.

        Of a batch: one of its matrices. The dense operands are taken to be contiguous and
        row-major; others may be copied first or take slower kernels.

        Parameters
        ----------
        n : int or bsr_array
            Number of columns, at least 1, or the block-sparse right operand of ``A @ B``.
        chip : dict, optional
            Properties of the GPU that differ from an H200's: ``name``, ``sm_arch`` (90),
            ``sm_count``, ``hbm_bytes_per_s``, ``l2_bytes_per_s``, ``l2_bytes``,
            ``mma_flops_per_s``. Without it, those of the matrix's own GPU, or an H200.
        precision : str
            ``"ieee"`` or ``"tf32"``, as in :func:`bsrgemm.matmul`.

        Raises
        ------
        ValueError
            If ``n`` is less than 1, a matrix that does not fit or a batch, ``chip`` has an entry of
            another name, or ``precision`` is another word.
        TypeError
            If ``n`` is no integer, or a ``DynamicArray``, whose pattern the host does not know, or
            a bsr_array of another dtype or of 8-bit floats, or ``precision`` is ``"tf32"`` and the
            matrix not float32.
        """
        chip = self._chip(chip)
        check_precision(precision)
        if precision == "tf32" and self._dtype != "float32":
            raise TypeError(
                f"precision is 'tf32', but A has dtype {self._dtype}: only float32 has it"
            )
        if isinstance(n, BlockSparse):
            if not n.is_fixed:
                raise TypeError(f"n is {a_kind_of(n)}; accepted: an integer or a bsr_array")
            other: Any = n
            check_single(other, "n")
            if other._dtype != self._dtype:
                raise TypeError(
                    f"n has dtype {other._dtype} and A {self._dtype}; accepted: the same dtype"
                )
            info = self._structure.explain_sparse(other._structure, self._dtype, chip)
            return self._plan(info, other.shape[1], chip, f"{self._name()} @ {other!r}")
        try:
            operator.index(n)
        except TypeError:
            told = repr(n) if isinstance(n, (str, float)) else a_kind_of(n)
            raise TypeError(f"n is {told}; accepted: an integer or a bsr_array") from None
        info = self._structure.explain(n, self._dtype, chip, precision)
        return self._plan(info, n, chip, f"{self._name()} @ dense, {n} columns")

    def plan_sampled(self, k: int, *, chip: dict[str, Any] | None = None) -> Plan:
        """How a GPU is going to compute ``sampled_matmul(a, b, A)``, and how fast.

        Parameters
        ----------
        k : int
            Columns of ``a`` and rows of ``b``, at least 1; both are contiguous and row-major.
        chip : dict, optional
            As in :meth:`plan`.

        Raises
        ------
        ValueError
            If ``k`` is less than 1 or ``chip`` is not accepted.
        TypeError
            If ``k`` is no integer, or the matrix is of 8-bit floats.
        """
        chip = self._chip(chip)
        info = self._structure.explain_sampled(k, self._dtype, chip)
        return self._plan(info, k, chip, f"dense @ dense, k = {k}, at the blocks of {self._name()}")

    def spy(self, ax: Any = None, *, text: bool | None = None, width: int = 72) -> Any:
        """Show which blocks are stored.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            What to draw on. Without it, new axes of ``matplotlib.pyplot`` if that is imported
            already, and text otherwise.
        text : bool, optional
            Whether to print text instead, or to draw although nobody has imported matplotlib.
        width : int
            Characters of a line of text, at least 8.

        Returns
        -------
        matplotlib.axes.Axes or None
            What was drawn on: the shade is the part of the blocks that is stored, the axes count
            elements. None after text was printed.

        Raises
        ------
        ValueError
            If ``width`` is less than 8, or ``ax`` is given together with ``text=True``.
        TypeError
            If ``width`` is no integer or ``ax`` no axes.
        ImportError
            If a picture is asked for and matplotlib is not installed.
        """
        return draw(self._structure, self._name(), ax, text, width)

    def _chip(self, chip: dict[str, Any] | None) -> dict[str, Any] | None:
        if chip is not None or self._device == "cpu":
            return chip
        gpu = _core.cuda_devices()[device_index(self._device)]
        return chip_of(gpu)

    def _plan(
        self, info: dict[str, Any], columns: int, chip: dict[str, Any] | None, title: str
    ) -> Plan:
        return Plan(
            info,
            structure=self._structure,
            columns=int(columns),
            dtype=self._dtype,
            chip=chip,
            title=title,
        )

    def _name(self) -> str:
        return repr(self)
