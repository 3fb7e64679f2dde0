"""Nodes on sockets and the machine's clock: `real.py` is the driver, `wiring.py` gives it a description's edges.

`threads.py` runs a worker beside its training loop, `loops.py` runs a server. The other driver is `geomx.simulate`.
"""
