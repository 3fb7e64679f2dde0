"""Payloads beside a connection, in datagrams: what may be lost, and what must arrive. No sockets, clock or keys.

A *load* is the payload of one message, cut into *blocks* that decode on their own. Its header travels on the
connection, its blocks travel here, each in one *piece* or several. Blocks of class 0 are reliable: they are sent until
they have arrived. Those of other classes are sent a number of times at most.

`packets.py` says how all this lies in datagrams, `sender.py` and `receiver.py` are the two ends of a flow.
`congestion.py` says when something may leave, `path.py` whether datagrams pass at all, and which sizes; `parity.py`
rebuilds lost pieces, `erasure.py` is the code that does. `ends.py` puts all together.

Both drivers use it: `geomx.channels.datagram` with sockets, `geomx.simulate.flows` with links that lose.
"""
