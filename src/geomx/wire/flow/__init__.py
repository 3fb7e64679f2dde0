"""Payloads beside a connection, in datagrams: what may be lost, and what must arrive. No sockets, no clock, no keys.

A *load* is the payload of one message, cut into *blocks*, each in one *piece* or several. Blocks of class 0 are
reliable: they are sent until they have arrived. Those of other classes are sent a number of times at most.

`ends.py` is one end of a flow, in both directions: what a driver calls. Below it, `sender.py` with the loads that are
on their way (`outbox.py`, `lanes.py`), `receiver.py` with those that come (`inbox.py`, `numbers.py`), and `path.py`:
whether datagrams pass at all, and which sizes. `congestion.py` says when something may leave; `parity.py` rebuilds lost
pieces, `erasure.py` is the code that does. `packets.py` says how all this lies in datagrams.
"""
