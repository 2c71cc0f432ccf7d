"""The developers' benchmark harness: bsrgemm beside its peers, and the tables made of the results.

``python -m benchmarks gpu``, ``attention``, ``cpu`` and ``tables``; each has ``--help``.
"""
