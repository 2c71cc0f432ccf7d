"""One case: operands, the float64 check, ours and the peers, each checked and timed."""

from __future__ import annotations

import math
import statistics
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from bsrgemm import Plan, bsr_array
from bsrgemm._matmul import product

from .cases import READ_ROWS, Case, order_operands
from .peers import FUSED, RIVALS, Problem, Product, wanted
from .records import Row, make_row, time_and_rate
from .timing import graph_of

# Ours may lose as much against float64 as twice what the dense product of the same precision does.
# A rival is marked from ten times on: then it is wrong, and not only rounded.
ALLOWED, RIVAL_ALLOWED = 2.0, 10.0

# Those whose sustained times are divided by one another are measured so many times, in turns, and
# the median counts: what the chip did before decides how warm it is, and so its clock.
TURNS = 3
IN_TURNS = {"bsrgemm", "bsrgemm_plain", "bsrgemm_dense", "cublas_equal_flop", "cublas_dense"}
IN_TURNS |= {"flash3", "flex", "own_float16", *FUSED}

# From this density on every case of the crossover is timed in turns with the dense product.
OWN_DENSE = 0.45


def is_new(seen: set[Any], case: Case, who: str) -> bool:
    """False for a dense product that has been measured already, for another case.

    Products of zeros take less power, and so less time: as many of them have to be in it. Where few
    are, both take about as long, and the clock drifts by more than they differ from one minute to
    the next: there each case has its own."""
    if who == "cublas_dense":
        key: tuple[Any, ...] = (who, case.dtype, case.m, case.n, case.k, f"{case.density:.2g}")
        if case.group == "crossover" and case.density >= OWN_DENSE:
            key += (case.block,)
    elif who == "cublas_layer":
        key = (who, case.dtype, case.m, case.n, case.k)
    elif who == "cublas_equal_flop":
        key = (who, case.dtype, case.block, *case.equal_flop_shape)
    else:
        return True
    if key in seen:
        return False
    seen.add(key)
    return True


@dataclass
class Outcome:
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # for the line that is printed
    wrong: bool = False


@dataclass
class Turn:
    """A sustained time that is measured again."""

    row: Row
    call: Callable[[], Any]
    estimate: float
    flops: float
    seconds: list[float]


@dataclass
class Reference:
    expected: Any  # float64
    dense_error: float  # what the dense product loses in the same precision


class Guard:
    """Of suites. What raises has a row that says so, and all others keep theirs."""

    timer: Any
    leading = "bsrgemm"  # that of a case's rows without which tables have no line
    broken: Exception | None = None  # set when the device fails after an error

    def run(self, case: Any) -> Outcome:
        raise NotImplementedError

    def run_guarded(self, case: Any) -> Outcome:
        """Operands and references may be what fails."""
        try:
            return self.run(case)
        except Exception as error:
            traceback.print_exc()
            rows, note = self._error(case, self.leading, error)
            return Outcome(rows, [note], wrong=True)

    def _attempt(
        self,
        case: Any,
        who: str,
        outcome: Outcome,
        measure: Callable[[], tuple[list[Row], str]],
    ) -> None:
        """Adds what ``measure`` finds, or the error that it raises."""
        try:
            rows, note = measure()
        except Exception as error:
            rows, note = self._error(case, who, error)
        outcome.rows += rows
        outcome.notes.append(f"{who} {note}")

    def _error(self, case: Any, who: str, error: Exception) -> tuple[list[Row], str]:
        """Who is not installed has no row: tables say of others that they fail."""
        text = describe(error)
        self._look_at_device()
        if isinstance(error, ModuleNotFoundError):
            return [], f"left out: {text}"
        return [make_row(case, who, None, None, 0.0, error=text)], text

    def _look_at_device(self) -> None:
        try:
            self._synchronize()
        except Exception as failure:
            self.broken = failure

    def _synchronize(self) -> None:
        self.timer.synchronize()


def is_right(rows: Iterable[Row]) -> bool:
    return not any(row.get("wrong") or "error" in row for row in rows)


class Suite(Guard):
    """Measures products. ``timer`` has prepare, sustained, burst, cold and synchronize."""

    rivals = RIVALS
    wanted = staticmethod(wanted)

    def __init__(
        self,
        torch: Any,
        device: str,
        timer: Any,
        chip: dict[str, Any] | None = None,
        peers: Iterable[str] | None = None,
        families: Iterable[str] = ("auto",),
        l2_bytes: float = 50e6,
        turns: int = 1,
    ) -> None:
        self.torch, self.device, self.timer, self.chip = torch, device, timer, chip
        self.peers = tuple(self.rivals if peers is None else peers)
        self.families, self.l2_bytes, self.turns = tuple(families), l2_bytes, turns
        self.waiting: list[Turn] = []  # of the case in hand
        self.seen: set[Any] = set()
        self.cache: dict[Any, Any] = {}

    def run(self, case: Any) -> Outcome:
        outcome = Outcome()
        self.waiting = []
        p = self._problem(case)
        reference = self._reference(p)
        for family in self._possible_families(p):
            measure = partial(self._ours, p, reference, family)
            self._attempt(case, our_name(family), outcome, measure)
        for who in self.wanted(case):
            if who in self.peers and not self.broken and is_new(self.seen, case, who):
                self._attempt(case, who, outcome, partial(self._rival, p, reference, who))
        self._take_turns(outcome)
        ours = (row for row in outcome.rows if row["who"].startswith("bsrgemm"))
        outcome.wrong = not is_right(ours)
        return outcome

    def _problem(self, case: Case) -> Problem:
        torch = self.torch
        kind = getattr(torch, case.dtype)
        pattern = case.make_pattern()
        height, width = case.block
        rows, cols = case.grid
        values = torch.randn(case.nnzb, height, width, device=self.device).to(kind)
        dense = torch.zeros(case.m, case.k, dtype=kind, device=self.device)
        i, j = (
            torch.as_tensor(index, device=self.device).long()
            for index in (pattern.rows, pattern.indices)
        )
        dense.view(rows, height, cols, width)[i, :, j, :] = values
        x_shape, out_shape = case.shapes
        x = torch.randn(x_shape, device=self.device).to(kind)
        out = torch.empty(out_shape, dtype=kind, device=self.device)
        return Problem(torch, case, pattern, values, dense, x, out, self.cache)

    def _reference(self, p: Problem) -> Reference:
        expected = multiply(p.case, p.dense.double(), p.x.double())
        # cuBLAS may add parts of a sum in 16 bits, which is no yardstick.
        matmul = self.torch.backends.cuda.matmul
        flags = [f"allow_{kind}_reduced_precision_reduction" for kind in ("fp16", "bf16")]
        saved = [getattr(matmul, flag) for flag in flags]
        try:
            for flag in flags:
                setattr(matmul, flag, False)
            same_precision = self._rounded_product(p)
        finally:
            for flag, value in zip(flags, saved, strict=True):
                setattr(matmul, flag, value)
        return Reference(expected, relative_error(self.torch, same_precision, expected))

    def _rounded_product(self, p: Problem) -> Any:
        """The dense product of the same precision."""
        return multiply(p.case, p.dense, p.x)

    def _plan(self, p: Problem) -> Plan:
        return self._read(p).plan(p.case.n, chip=self.chip)

    def _possible_families(self, p: Problem) -> list[str]:
        """Those of the wanted families that take the case."""
        candidates = self._plan(p).candidates
        possible = {"auto"} | {c["family"] for c in candidates if c["supported"]}
        return [family for family in self.families if family in possible]

    def _ours(self, p: Problem, reference: Reference, family: str) -> tuple[list[Row], str]:
        plan = self._plan(p)
        chosen = plan.choice if family == "auto" else family
        candidate = next(c for c in plan.candidates if c["family"] == chosen)
        # The first product with any such matrix also loads the kernel: it is not timed.
        self._our_product(p, family).call()
        ours = self._our_product(p, family)
        p.out.fill_(math.nan)
        ours.call()
        error = relative_error(self.torch, p.out, reference.expected)
        plan_seconds = self._plan_seconds(lambda: self._our_product(p, family))
        wrong = not error <= ALLOWED * reference.dense_error
        extra: dict[str, Any] = {
            "rel_err": error,
            "dense_rel_err": reference.dense_error,
            "family": chosen,
            "predicted_us": candidate["seconds"] * 1e6,
            "plan_us": plan_seconds * 1e6,
        }
        rows = self._time(
            p, our_name(family), ours, extra, wrong, lambda q: self._our_product(q, family)
        )
        return rows, (
            f"{rates(rows)} {chosen}, predicted/measured "
            f"{extra['predicted_us'] / rows[0]['us']:.2f}, plan {plan_seconds * 1e3:.2f} ms, "
            f"error {error:.1e}"
        )

    def _rival(self, p: Problem, reference: Reference, who: str) -> tuple[list[Row], str]:
        rival = self.rivals[who](p)
        # Memory that a rival allocates for its result has just been this.
        self.torch.full_like(p.out, math.nan)
        p.out.fill_(math.nan)
        expected = rival.expected() if rival.expected else reference.expected
        error = relative_error(self.torch, rival.call(), expected)
        wrong = not error <= RIVAL_ALLOWED * reference.dense_error
        rows = self._time(p, who, rival, {"rel_err": error}, wrong, self.rivals[who])
        return rows, rates(rows)

    def _time(
        self,
        p: Problem,
        who: str,
        what: Product,
        extra: dict[str, Any],
        wrong: bool,
        again: Callable[[Problem], Product],
    ) -> list[Row]:
        """A row for each of the case's timings. ``again`` makes the product for other operands."""
        extra = extra | ({"wrong": True} if wrong else {})
        extra |= {} if what.bytes is None else {"bytes": what.bytes}
        if "cold" in p.case.timings:
            timings = {"cold": self.timer.cold([again(q).call for q in self._copies(p)])}
        else:
            call, estimate = self.timer.prepare(what.call)
            extra |= graph_of(call)
            timings = self._measure(call, estimate)
        rows = [
            make_row(p.case, who, name, timing.seconds, what.flops, **extra)
            for name, timing in timings.items()
        ]
        if "sustained" in timings and who in IN_TURNS:
            seconds = [timings["sustained"].seconds]
            self.waiting.append(Turn(rows[0], call, estimate, what.flops, seconds))
        return rows

    def _measure(self, call: Callable[[], Any], estimate: float) -> dict[str, Any]:
        """By the name of the timing."""
        return {
            "sustained": self.timer.sustained(call, estimate),
            "burst": self.timer.burst(call),
        }

    def _take_turns(self, outcome: Outcome) -> None:
        """Back and forth, so that nobody always comes after the same. Who is alone has turns, too:
        it is compared with another case, and the first one after a check is up to 15% longer than
        the next."""
        if self.turns == 1 or self.broken:
            return
        for _ in range(self.turns - 1):
            self.waiting.reverse()
            for turn in [*self.waiting]:
                self._take_turn(turn, outcome)
        for turn in self.waiting:
            turn.row |= time_and_rate(statistics.median(turn.seconds), turn.flops)
            turn.row["turns_us"] = [time_and_rate(s, turn.flops)["us"] for s in turn.seconds]
            outcome.notes.append(f"{turn.row['who']} in turns {turn.row['tflops']:.3g}")

    def _take_turn(self, turn: Turn, outcome: Outcome) -> None:
        """Who raises in one has no time any more."""
        if self.broken:
            return
        try:
            turn.seconds.append(self.timer.sustained(turn.call, turn.estimate).seconds)
        except Exception as error:
            self.waiting.remove(turn)
            self._look_at_device()
            turn.row |= {"timing": None, **time_and_rate(None, 0.0), "error": describe(error)}
            outcome.notes.append(f"{turn.row['who']} in turns {turn.row['error']}")

    def _matrix(self, p: Problem) -> bsr_array:
        arrays = (p.values, p.pattern.indices, p.pattern.indptr)
        return bsr_array(arrays, (p.case.m, p.case.k))

    def _read(self, p: Problem) -> bsr_array:
        """The matrix or its view, with the blocks as the product reads them."""
        a = self._matrix(p)
        return a if p.case.op in READ_ROWS else a.T

    def _our_product(self, p: Problem, family: str) -> Product:
        a = self._matrix(p)
        operands = order_operands(p.case, a, p.x)
        return Product(
            lambda: product(*operands, None, 1.0, None, p.out, None, family), p.case.useful_flops
        )

    def _copies(self, p: Problem) -> list[Problem]:
        """Enough copies that no L2 cache holds one from the last time round."""
        size = sum(t.numel() * t.element_size() for t in (p.values, p.x, p.out))
        return [
            replace(
                p, **{name: getattr(p, name).clone() for name in ("values", "dense", "x", "out")}
            )
            for _ in range(math.ceil(3 * self.l2_bytes / size) + 1)
        ]

    def _plan_seconds(self, make: Callable[[], Product]) -> float:
        """Of planning and uploading, which only the first call does, by the host's clock: the least
        of three, since the host has other things to do."""
        firsts, laters = [], []
        for _ in range(3):
            call = make().call
            firsts.append(self._host_seconds(call))
            laters += [self._host_seconds(call) for _ in range(2)]
        return max(min(firsts) - min(laters), 0.0)

    def _host_seconds(self, call: Callable[[], Any]) -> float:
        self.timer.synchronize()
        start = time.perf_counter()
        call()
        self.timer.synchronize()
        return time.perf_counter() - start


def multiply(case: Any, a: Any, x: Any) -> Any:
    left, right = order_operands(case, a, x)
    return left @ right


def relative_error(torch: Any, found: Any, expected: Any) -> float:
    """Of the whole result, in the Frobenius norm; infinite where anything is not finite."""
    error = torch.linalg.norm(found.double() - expected) / torch.linalg.norm(expected)
    return float(error) if torch.isfinite(error) else math.inf


def our_name(family: str) -> str:
    return "bsrgemm" if family == "auto" else f"bsrgemm:{family}"


def describe(error: Exception) -> str:
    first_line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first_line}"[:200]


def rates(rows: list[Row]) -> str:
    """ "s538 b612 TF/s": sustained and burst; time and bandwidth where a case names its bytes."""
    text = " ".join(f"{row['timing'][0]}{row['tflops']:.3g}" for row in rows) + " TF/s"
    if rows[0].get("bytes"):
        text += f" {rows[0]['us']:.4g} us {rows[0]['bytes'] / rows[0]['us'] / 1e6:.3g} TB/s"
    return text + (" WRONG" if rows[0].get("wrong") else "")
