"""The examples, in small form."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from spaces import import_torch

torch = import_torch()

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_training_while_pruning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("train_pruned")
    small = dataclasses.replace(example.SMALL, width=32, block=16, steps=200, density=0.25)
    monkeypatch.setattr(example, "SMALL", small)
    out = tmp_path / "curves.json"
    arguments = ["train_pruned.py", "--device", "cpu", "--out", str(out)]
    monkeypatch.setattr("sys.argv", arguments)
    example.main()
    record = json.loads(out.read_text())
    assert "dense: loss" in capsys.readouterr().out
    for name in ("dense", "sparse"):
        curve = record[name]
        assert len(curve["loss"]) == small.steps // small.prune_every
        assert curve["loss"][-1] < 0.7 * curve["loss"][0] and curve["accuracy"] > 0.3
    assert record["sparse"]["density"][0] == 1.0 and record["sparse"]["density"][-1] == 0.25
    pruned = 0.75 * 2 * small.layers * 4 * small.width**2
    assert record["dense"]["parameters"] - record["sparse"]["parameters"] == pruned
    assert record["sparse"]["loss"][-1] < 1.5 * record["dense"]["loss"][-1]
