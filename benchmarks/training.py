"""Steps of training an MLP with block-sparse layers on cuda:0, beside PyTorch's dense ones.

Parts of a step are timed on the GPU between the ends of the kernels before and of the last one, so
what the host adds where it is slower than the GPU counts.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .arguments import are_any
from .cases import select
from .gpu import add_measure_arguments, measure
from .records import Results, Row, make_row
from .suite import ALLOWED, Guard, Outcome, describe, relative_error

WARM_SECONDS, STEPS, TURNS = 0.3, 40, 3
# Between a compiled model and itself as it is, in units of the dtype's roundoff.
COMPILED_ALLOWED = 4
PARTS = ("forward", "backward", "optimizer")
# name: (whether the layers are sparse, whether the model is compiled)
KINDS = {
    "bsrgemm": (True, False),
    "dense": (False, False),
    "bsrgemm_compiled": (True, True),
    "dense_compiled": (False, True),
}


@dataclass(frozen=True)
class TrainingCase:
    """``features`` -> ``hidden`` -> ``features``, with an activation between."""

    activation: str
    dtype: str = "bfloat16"
    block: int = 128
    density: float = 0.125
    tokens: int = 4096
    features: int = 4096
    hidden: int = 14336

    @property
    def name(self) -> str:
        return (
            f"training/{self.dtype}/{self.block}x{self.block}/d{self.density:.3g}/"
            f"{self.activation}/{self.tokens}x{self.features}x{self.hidden}"
        )

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "op": "training",
            "dtype": self.dtype,
            "block": [self.block, self.block],
            "density": self.density,
            "activation": self.activation,
            "tokens": self.tokens,
            "features": self.features,
            "hidden": self.hidden,
        }

    def flops(self, sparse: bool) -> float:
        """Of a step's six products."""
        dense = 6 * 2.0 * self.tokens * self.features * self.hidden
        return dense * (self.density if sparse else 1.0)


def training_cases() -> Iterator[TrainingCase]:
    for activation in ("gelu", "relu"):
        yield TrainingCase(activation)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_measure_arguments(parser, "training", KINDS, select="", groups="training")


def run(args: argparse.Namespace) -> int:
    cases = select(training_cases(), args.select)
    if not are_any(cases):
        return 2
    if args.dry_run:
        print("\n".join(case.name for case in cases))
        return 0

    def make_suite(torch: Any, gpu: dict[str, Any], results: Results) -> TrainingSuite:
        return TrainingSuite(torch, kinds=args.peers)

    return measure(args, cases, make_suite)


class TrainingSuite(Guard):
    """Measures a case: every kind of model by itself, so that its memory can be told."""

    def __init__(
        self,
        torch: Any,
        device: str = "cuda:0",
        kinds: Any = tuple(KINDS),
        warm: float = WARM_SECONDS,
        steps: int = STEPS,
    ) -> None:
        self.torch, self.device, self.kinds = torch, device, tuple(kinds)
        self.warm, self.steps = warm, steps

    def run(self, case: TrainingCase) -> Outcome:
        outcome = Outcome()
        with self.torch.enable_grad():
            errors = self._errors(case)
            wrong = not all(found <= ALLOWED * lost for found, lost in errors)
            outcome.wrong = wrong
            for kind in self.kinds:
                try:
                    rows = self._measure(case, kind)
                except Exception as failure:
                    rows = [make_row(case, kind, None, None, 0.0, error=describe(failure))]
                    outcome.wrong |= kind == "bsrgemm"
                if kind.startswith("bsrgemm"):
                    rows = [row | {"wrong": True} if wrong else row for row in rows]
                    outcome.wrong |= any("wrong" in row for row in rows)
                outcome.rows += rows
                said = rows[0]["error"] if "error" in rows[0] else f"{rows[-1]['us']} us"
                outcome.notes.append(f"{kind} {said}")
        return outcome

    def _synchronize(self) -> None:
        if self.device != "cpu":
            self.torch.cuda.synchronize()

    # ---- models --------------------------------------------------------------------------------

    def _dense(self, case: TrainingCase) -> Any:
        nn = self.torch.nn
        made = {"device": self.device, "dtype": getattr(self.torch, case.dtype)}
        activation = {"gelu": nn.GELU, "relu": nn.ReLU}[case.activation]()
        return nn.Sequential(
            nn.Linear(case.features, case.hidden, **made),
            activation,
            nn.Linear(case.hidden, case.features, **made),
        )

    def _sparse(self, case: TrainingCase, dense: Any) -> Any:
        from bsrgemm.torch import BSRLinear

        options: dict[str, Any] = {"blocksize": (case.block,) * 2, "density": case.density}
        return self.torch.nn.Sequential(
            BSRLinear.from_linear(dense[0], activation=case.activation, **options),
            BSRLinear.from_linear(dense[2], **options),
        )

    def _operands(self, case: TrainingCase, tokens: int) -> tuple[Any, Any]:
        """An input that wants a gradient, as that of a layer within a model, and the gradient of
        the result."""
        shape = tokens, case.features
        x, wanted = (
            self.torch.randn(shape, device=self.device).to(getattr(self.torch, case.dtype))
            for _ in range(2)
        )
        return x.requires_grad_(), wanted

    # ---- whether it is right -------------------------------------------------------------------

    def _errors(self, case: TrainingCase) -> list[tuple[float, float]]:
        """Of the result and the gradients of input and weights: what ours loses against float64,
        and what the dense model of the same weights and precision does."""
        torch = self.torch
        dense = self._dense(case)
        sparse = self._sparse(case, dense)
        layers = dense[0], dense[2]
        with torch.no_grad():
            for layer, block_sparse in zip(layers, sparse, strict=True):
                layer.weight.copy_(block_sparse.weight.todense())
        x, wanted = self._operands(case, min(256, case.tokens))
        ours = self._results(sparse, x, wanted, lambda i: sparse[i].values.grad)
        same = self._results(dense, x, wanted, lambda i: self._blocks(layers[i], sparse[i]))
        wide = x.detach().double().requires_grad_()
        dense.double()
        dense.zero_grad()
        exact = self._results(
            dense, wide, wanted.double(), lambda i: self._blocks(layers[i], sparse[i])
        )
        return [
            (relative_error(torch, a, c), relative_error(torch, b, c))
            for a, b, c in zip(ours, same, exact, strict=True)
        ]

    def _results(
        self, model: Any, x: Any, wanted: Any, gradient_of: Callable[[int], Any]
    ) -> list[Any]:
        x.grad = None
        y = model(x)
        y.backward(wanted)
        return [y.detach(), x.grad.clone(), gradient_of(0).clone(), gradient_of(1).clone()]

    def _blocks(self, linear: Any, layer: Any) -> Any:
        """The gradient of a dense layer at the blocks that the sparse one stores."""
        height, width = layer.blocksize
        gradient = linear.weight.grad
        tiles = gradient.view(gradient.shape[0] // height, height, -1, width).transpose(1, 2)
        counts = layer.indptr.diff().long()
        rows = self.torch.repeat_interleave(
            self.torch.arange(len(counts), device=counts.device), counts
        )
        return tiles[rows, layer.indices.long()]

    # ---- time and memory -----------------------------------------------------------------------

    def _measure(self, case: TrainingCase, kind: str) -> list[Row]:
        """A row for each part of a step, and then one for all together."""
        torch = self.torch
        sparse, compiled = KINDS[kind]
        on_gpu = self.device != "cpu"
        model = self._dense(case)
        if sparse:
            model = self._sparse(case, model)
        x, wanted = self._operands(case, case.tokens)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        call = torch.compile(model) if compiled else model
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        clock = Clock(torch, on_gpu)

        def step() -> list[Any]:
            marks = [clock.mark()]
            x.grad = None
            optimizer.zero_grad()
            y = call(x)
            marks.append(clock.mark())
            y.backward(wanted)
            marks.append(clock.mark())
            optimizer.step()
            return [*marks, clock.mark()]

        step()
        found: dict[str, list[float]] = {part: [] for part in (*PARTS, "step", "host")}
        for _ in range(TURNS):
            end = time.perf_counter() + self.warm
            while time.perf_counter() < end:
                step()
                clock.wait()
            start = time.perf_counter()
            steps = [step() for _ in range(self.steps)]
            found["host"].append((time.perf_counter() - start) / self.steps)
            clock.wait()
            for marks in steps[1:]:
                for i, part in enumerate(PARTS):
                    found[part].append(clock.seconds(marks[i], marks[i + 1]))
                found["step"].append(clock.seconds(marks[0], marks[-1]))
        seconds = {part: statistics.median(times) for part, times in found.items()}
        extra: dict[str, Any] = {"state_bytes": state_bytes(model, optimizer)}
        if on_gpu:
            extra["peak_bytes"] = torch.cuda.max_memory_allocated()
        rows = [make_row(case, kind, part, seconds[part], 0.0) for part in PARTS]
        host_us = seconds["host"] * 1e6
        flops = case.flops(sparse)
        rows.append(make_row(case, kind, "step", seconds["step"], flops, host_us=host_us, **extra))
        if compiled and not self._is_as_eager(case, call, model, x, wanted):
            rows = [row | {"wrong": True} for row in rows]
        return rows

    def _is_as_eager(
        self, case: TrainingCase, call: Callable[..., Any], model: Any, x: Any, wanted: Any
    ) -> bool:
        """Whether a compiled model's result and gradient of the input are those of the model."""
        torch, found = self.torch, []
        for each in (call, model):
            x.grad = None
            y = each(x)
            y.backward(wanted)
            found.append((y.detach(), x.grad))
        allowed = COMPILED_ALLOWED * torch.finfo(getattr(torch, case.dtype)).eps
        return all(
            relative_error(torch, ours, same.double()) <= allowed
            for ours, same in zip(*found, strict=True)
        )


class Clock:
    """Marks in the order of the work: of a GPU's stream, or of the host."""

    def __init__(self, torch: Any, on_gpu: bool) -> None:
        self.torch, self.on_gpu = torch, on_gpu

    def mark(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def seconds(self, begin: Any, end: Any) -> float:
        return begin.elapsed_time(end) * 1e-3 if self.on_gpu else end - begin


def state_bytes(model: Any, optimizer: Any) -> int:
    """Of weights, their gradients and what the optimizer keeps for them."""
    total = 0
    for parameter in model.parameters():
        kept = [x for x in optimizer.state[parameter].values() if x.numel() > 1]
        tensors = [parameter, *([] if parameter.grad is None else [parameter.grad]), *kept]
        total += sum(math.prod(x.shape) * x.element_size() for x in tensors)
    return total
