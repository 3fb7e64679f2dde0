"""The other ends of a node's edges: who they are, how they greet, how it is noticed that they are gone.

`base.py` is what every node does; `handshake.py` says who is let in; `watch.py` looks after those who are, and
`stillness.py` says when nobody will ever speak again; `awaited.py` has the workers that are lost and may come back;
`farewell.py` is what a node does last, when it has failed; `peer.py` is one other end.
"""
