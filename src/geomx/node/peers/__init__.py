"""The other ends of a node's edges: who they are, how they greet, how their silence is noticed.

`base.py` is what every node does; `handshake.py` says who is let in; `peer.py` is one other end.
"""
