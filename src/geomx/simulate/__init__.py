"""Nodes on a virtual clock and a seeded network: a week of faults in seconds, replayed from a seed.

`simulator.py` is the driver; `connections.py`, `network.py` and `flows.py` are what it has in place of sockets,
`programs.py` in place of a worker's thread; `links.py` gives it a description's links, `graph.py` and `traffic.py`
links that flows share. The other driver is `geomx.drive`.
"""
