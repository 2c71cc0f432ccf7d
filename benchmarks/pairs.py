"""The suite, for cases of two block-sparse matrices as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bsrgemm import Plan, bsr_array
from bsrgemm._matmul import product

from .cases import PairsCase
from .patterns import Pattern
from .peers import Problem, Product
from .suite import Suite


@dataclass
class PairsProblem(Problem):
    """``x`` is B with its zeros."""

    b_pattern: Pattern | None = None
    b_values: Any = None  # [nnzb, bw, b_width]


class PairsSuite(Suite):
    """Measures products of a block-sparse matrix with a dense or another block-sparse one."""

    def _problem(self, case: Any) -> Problem:
        p = super()._problem(case)
        if not isinstance(case, PairsCase):
            return p
        pattern, (rows, cols) = case.make_b_pattern(), case.b_grid
        depth, width = case.block[1], case.b_width
        values = self.torch.randn(len(pattern.indices), depth, width, device=self.device)
        values = values.to(p.x.dtype)
        i, j = (
            self.torch.as_tensor(index, device=self.device).long()
            for index in (pattern.rows, pattern.indices)
        )
        p.x.zero_().view(rows, depth, cols, width)[i, :, j, :] = values
        return PairsProblem(**vars(p), b_pattern=pattern, b_values=values)

    def _plan(self, p: Problem) -> Plan:
        if not isinstance(p, PairsProblem):
            return super()._plan(p)
        return self._matrix(p).plan(self._b_matrix(p), chip=self.chip)

    def _our_product(self, p: Problem, family: str) -> Product:
        if not isinstance(p, PairsProblem):
            return super()._our_product(p, family)
        a, b = self._matrix(p), self._b_matrix(p)
        return Product(
            lambda: product(a, b, None, 1.0, 0.0, p.out, None, family), p.case.useful_flops
        )

    def _b_matrix(self, p: PairsProblem) -> bsr_array:
        assert p.b_pattern is not None
        arrays = (p.b_values, p.b_pattern.indices, p.b_pattern.indptr)
        return bsr_array(arrays, (p.case.k, p.case.n))
