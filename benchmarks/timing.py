"""How products are timed on a GPU.

The chip is limited by its power, so one product has two times: *burst* is the median of 10 launches
after 60 ms of rest, *sustained* the median over at least 60 ms after 100 ms of the same. Both are
of a graph where the host would take longer than the GPU, which holds several calls if they are
short, and a time is then the mean of those of a launch; *eager* is sustained without one. *cold*
rotates over copies of the operands that together exceed the L2 cache three times.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

BURST_IDLE, BURST_LAUNCHES = 60e-3, 10
SUSTAINED_WARM, SUSTAINED_MEASURED = 100e-3, 60e-3
COLD_LAUNCHES = 200
# Launches between two waits of the host, below the depth of the driver's queue.
CHUNK = 400
# A graph holds calls for at least so long, since the host needs up to 20 us to launch one.
GRAPH_SECONDS = 200e-6
# A clock tick of the GPU is 0.5 to 0.6 ns while it works; the spin has to outlast the enqueuing.
SPIN_CYCLES_PER_SECOND = 2.0e9

Call = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    seconds: float  # median of one launch
    launches: int


class DeviceTimer:
    """Times what calls put on torch's current stream, with CUDA events."""

    def __init__(
        self, torch: Any, warm: float = SUSTAINED_WARM, measured: float = SUSTAINED_MEASURED
    ) -> None:
        self.torch, self.warm, self.measured = torch, warm, measured
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(CHUNK + 1)]

    def prepare(self, call: Call) -> tuple[Call, float]:
        """The call, or where the host needs longer for it than the GPU a graph of it, or of several
        if it is short; and roughly what the GPU needs.
        """
        for _ in range(2):
            call()
        self.torch.cuda.synchronize()
        # The host's best of three: once in a while something else keeps it for milliseconds.
        timed = [self._spin_ahead([call] * 5) for _ in range(3)]
        seconds, host_seconds = (min(times) for times in zip(*timed, strict=True))
        # With the events between launches the host needs nearly twice that.
        if host_seconds > 0.5 * seconds:
            call = self._graph(call, math.ceil(GRAPH_SECONDS / seconds))
        return call, seconds

    def alone(self, call: Call) -> float:
        """Seconds of a call on the GPU, about, whatever the host needs for it."""
        return self._spin_ahead([call] * 5)[0]

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def sustained(self, call: Call, estimate: float) -> Timing:
        calls = calls_of(call)
        for _ in range(math.ceil(self.warm / (estimate * calls))):
            call()
        times: list[float] = []
        todo = max(10, math.ceil(self.measured / (estimate * calls)))
        while len(times) < todo or sum(times) * calls < self.measured:
            times += self._record([call] * min(CHUNK, max(todo - len(times), 10)))
        return Timing(statistics.median(times), len(times) * calls)

    def burst(self, call: Call) -> Timing:
        self.torch.cuda.synchronize()
        time.sleep(BURST_IDLE)
        # Two untimed, so that the host is ahead of the GPU when the first timed one begins.
        call()
        call()
        times = self._record([call] * BURST_LAUNCHES)
        return Timing(statistics.median(times), len(times) * calls_of(call))

    def cold(self, calls: Sequence[Call]) -> Timing:
        """Each call has operands of its own. The mean of 20 in a row, median over ten of those."""
        for call in calls:
            call()
        self.torch.cuda.synchronize()
        times = [
            self._spin_ahead([calls[(first + i) % len(calls)] for i in range(20)])[0]
            for first in range(0, COLD_LAUNCHES, 20)
        ]
        return Timing(statistics.median(times), COLD_LAUNCHES)

    def _record(self, calls: Sequence[Call]) -> list[float]:
        """Seconds of a call, from one launch's end to the next one's; they wait for nothing."""
        self.events[0].record()
        for call, event in zip(calls, self.events[1:], strict=False):
            call()
            event.record()
        self.events[len(calls)].synchronize()
        ends = zip(self.events, self.events[1 : len(calls) + 1], calls, strict=False)
        return [before.elapsed_time(after) * 1e-3 / calls_of(call) for before, after, call in ends]

    def _spin_ahead(self, calls: Sequence[Call]) -> tuple[float, float]:
        """Mean seconds of a call on the GPU and on the host, while the GPU spins until all calls
        are enqueued: so no time of the host is in that of the GPU."""
        spin = 5e-3
        while True:
            self.torch.cuda._sleep(int(spin * SPIN_CYCLES_PER_SECOND))
            start = time.perf_counter()
            self.events[0].record()
            for call in calls:
                call()
            self.events[1].record()
            host_seconds = time.perf_counter() - start
            enqueued_in_time = not self.events[0].query()
            self.torch.cuda.synchronize()
            if enqueued_in_time or spin > 0.2:
                seconds = self.events[0].elapsed_time(self.events[1]) * 1e-3
                count = sum(map(calls_of, calls))
                return seconds / count, host_seconds / count
            spin *= 4

    def _graph(self, call: Call, calls: int) -> Call:
        graph = self.torch.cuda.CUDAGraph()
        try:
            with self.torch.cuda.graph(graph):
                for _ in range(calls):
                    call()
        except RuntimeError:
            # Not every peer can be captured; it is then timed as its users call it.
            self.torch.cuda.synchronize()
            return Uncaptured(call)
        graph.replay()
        replayed = Replayed(_replay, graph, call)
        replayed.calls = calls
        return replayed


class Replayed(partial):
    """A graph of one or several calls."""

    calls: int


class Uncaptured(partial):
    """A call that should be a graph, and cannot."""


def calls_of(call: Call) -> int:
    """How many calls of what is timed a prepared call makes."""
    return call.calls if isinstance(call, Replayed) else 1


def graph_of(call: Call) -> dict[str, bool | int]:
    """What a row says of a prepared call, where the host is slower than the GPU."""
    if isinstance(call, (Replayed, Uncaptured)):
        several = {"graph_calls": calls_of(call)} if calls_of(call) > 1 else {}
        return {"graph": isinstance(call, Replayed), **several}
    return {}


def _replay(graph: Any, _captured: Call) -> None:
    """The call stays alive with its graph, which reads operands, or copies of them, that only the
    call may hold."""
    graph.replay()


def rounds(calls: dict[str, Call], count: int, rest: float = 0.05) -> dict[str, list[float]]:
    """Seconds of every call, ``count`` times in turn, on the host.

    The rest before each lets the threads of the one before, which spin for a while, go to sleep.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(count):
        for name, call in calls.items():
            time.sleep(rest)
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times
