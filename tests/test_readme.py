"""What the README's examples compute; test_documents.py runs them all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from documents import ROOT, NotRun, document

README = document(ROOT / "README.md")


def names_behind(text: str) -> dict[str, Any]:
    """The namespace behind the one example that holds ``text``."""
    (block,) = (b for b in README.blocks if b.language == "python" and text in b.text)
    try:
        return README.run(block)
    except NotRun as reason:
        pytest.skip(f"README.md:{block.line}: {reason}")


def test_numpy() -> None:
    names = names_behind("scipy.sparse.kron")
    product = names["S"].toarray() @ names["X"].astype(np.float64)
    error = np.linalg.norm(names["Y"] - 1.5 * product) / np.linalg.norm(1.5 * product)
    assert names["Y"].dtype == np.float32
    assert error < 1e-6


def test_torch() -> None:
    names = names_behind("torch.bfloat16, device=device)\nA = ")
    assert names["Y"].shape == (256, 1000)
    assert names["Y"].dtype == names["torch"].bfloat16
    assert names["Y"].isfinite().all()


def test_dynamic_pattern() -> None:
    names = names_behind("bsrgemm.DynamicPattern")
    assert names["A"].data.shape == (128, 64, 64) and names["pattern"].nnzb > 0
    assert names["Y"].shape == (1024, 256) and names["Y"].dtype is names["torch"].float32
    assert names["Y"].isfinite().all()


def test_attention() -> None:
    names = names_behind("bsrgemm.attention")
    torch = names["torch"]
    q, k, v = (names[name].double().cpu() for name in "qkv")
    k, v = (x.repeat_interleave(4, dim=1) for x in (k, v))
    document = torch.repeat_interleave(torch.tensor([256, 640, 128]))
    seen = (document[:, None] == document[None, :]).tril()
    attend = torch.nn.functional.scaled_dot_product_attention
    expected = attend(q, k, v, attn_mask=seen)
    error = (names["out"].double().cpu() - expected).norm() / expected.norm()
    assert error < (1e-6 if names["dtype"] is torch.float32 else 4e-3)


def test_linear_layers() -> None:
    names = names_behind("sparsify_")
    assert [layer.density for layer in names["model"][::2]] == [0.25, 0.5]
    assert names["model"][2].values.grad.isfinite().all()


@pytest.mark.gpu
def test_cupy() -> None:
    names = names_behind("import cupy")
    assert isinstance(names["Y"], names["cupy"].ndarray)
    assert names["Y"].shape == (1024, 256)
