"""The README's examples run as printed, in their order, in one namespace."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.DOTALL | re.MULTILINE)


def run(block: str, names: dict[str, Any]) -> None:
    exec(compile(block, "README.md", "exec"), names)


def test_all_examples_are_known() -> None:
    assert [re.search(r"import (torch|cupy|scipy)", b)[1] for b in BLOCKS] == [
        "scipy",
        "torch",
        "cupy",
        "torch",
        "torch",
        "torch",
    ]


def test_numpy() -> None:
    pytest.importorskip("scipy")
    names: dict[str, Any] = {}
    run(BLOCKS[0], names)
    product = names["S"].toarray() @ names["X"].astype(np.float64)
    error = np.linalg.norm(names["Y"] - 1.5 * product) / np.linalg.norm(1.5 * product)
    assert names["Y"].dtype == np.float32
    assert error < 1e-6


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    names: dict[str, Any] = {"bsrgemm": __import__("bsrgemm")}
    run(BLOCKS[1], names)
    assert names["Y"].shape == (256, 1000)
    assert names["Y"].dtype == torch.bfloat16
    assert names["Y"].isfinite().all()


def test_dynamic_pattern() -> None:
    torch = pytest.importorskip("torch")
    names: dict[str, Any] = {"bsrgemm": __import__("bsrgemm")}
    run(BLOCKS[3], names)
    assert names["A"].data.shape == (128, 64, 64) and names["pattern"].nnzb > 0
    assert names["Y"].shape == (1024, 256) and names["Y"].dtype is torch.float32
    assert names["Y"].isfinite().all()


def test_attention() -> None:
    torch = pytest.importorskip("torch")
    names: dict[str, Any] = {"bsrgemm": __import__("bsrgemm")}
    run(BLOCKS[4], names)
    q, k, v = (names[name].double().cpu() for name in "qkv")
    k, v = (x.repeat_interleave(4, dim=1) for x in (k, v))
    document = torch.repeat_interleave(torch.tensor([256, 640, 128]))
    seen = (document[:, None] == document[None, :]).tril()
    attend = torch.nn.functional.scaled_dot_product_attention
    expected = attend(q, k, v, attn_mask=seen)
    error = (names["out"].double().cpu() - expected).norm() / expected.norm()
    assert error < (1e-6 if names["dtype"] is torch.float32 else 4e-3)


def test_linear_layers() -> None:
    torch = pytest.importorskip("torch")
    names: dict[str, Any] = {"bsrgemm": __import__("bsrgemm"), "torch": torch, "device": "cpu"}
    run(BLOCKS[5], names)
    assert [layer.density for layer in names["model"][::2]] == [0.25, 0.5]
    assert names["model"][2].values.grad.isfinite().all()


@pytest.mark.gpu
def test_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    pytest.importorskip("scipy")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"CuPy sees no GPU: {error}")
    names: dict[str, Any] = {}
    run(BLOCKS[0], names)
    names["S"] = names["S"].astype(np.float64)
    run(BLOCKS[2], names)
    assert isinstance(names["Y"], cupy.ndarray)
    assert names["Y"].shape == (1024, 256)
