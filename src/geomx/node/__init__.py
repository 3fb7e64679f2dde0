"""The nodes of a run's tree, as state machines: events and the time go in, effects come out.

`contract.py` (a node and its driver) and `port.py` (a node and its training loop) first. `worker.py` is the leaf,
`server.py` every inner node: with an `aggregator.py` it is a local server, with a `root.py` a shard; both keep the
contract of `round_sink.py`, and whoever pushes does it through `uplink.py`. `topology.py` is the tree, `factory.py`
makes its nodes. `peers/` has what every node does with others, `slices/` what is kept and done for each slice,
`members/` who takes part.
"""
