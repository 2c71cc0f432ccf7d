"""Malformed calls of threads and of DeviceArray, and what they raise."""

from __future__ import annotations

import bsrgemm
import numpy as np
from bsrgemm import DeviceArray
from malformed_inputs import Bad

TABLES = {
    "set_num_threads": (
        Bad("negative", lambda: bsrgemm.set_num_threads(-1), ValueError, ("n is -1",)),
        Bad(
            "too many",
            lambda: bsrgemm.set_num_threads(2**20),
            ValueError,
            ("n is 1048576", "from 1 to 1024"),
        ),
        Bad("a fraction", lambda: bsrgemm.set_num_threads(1.5), TypeError, ("n is 1.5",)),
    ),
    "DeviceArray": (
        Bad(
            "unknown dtype",
            lambda: DeviceArray.empty((2,), "int3"),
            TypeError,
            ("dtype is 'int3'", "must be one of"),
        ),
        Bad(
            "negative shape",
            lambda: DeviceArray.empty((-2,), "float32"),
            ValueError,
            ("shape is (-2,)", "at least 0"),
        ),
        Bad(
            "on the CPU",
            lambda: DeviceArray.empty((2,), "float32", "cpu"),
            (TypeError, ValueError),
            ("device is 'cpu'",),
        ),
        Bad(
            "stream a string",
            lambda: DeviceArray.empty((2,), "float32", stream="1"),
            TypeError,
            ("stream is '1'",),
        ),
        Bad(
            "of no array",
            lambda: DeviceArray.from_host("abc"),
            TypeError,
            ("array is of type str",),
        ),
        Bad(
            "of a masked array",
            lambda: DeviceArray.from_host(np.ma.ones(3)),
            TypeError,
            ("array is a numpy.ma.MaskedArray", "accepted: a plain array"),
        ),
    ),
}
