"""What travels between two nodes, and in which order: no torch, no sockets, no clock.

`messages.py` first (with `flow_messages.py`, of datagrams, and `roster_messages.py`, of who takes part), then
`frames.py` (bytes), `lanes.py` (P3: what is urgent overtakes), `session.py` (exactly once over many connections),
`presence.py` (which parts of a slice have a value). All of it may be imported from outside.
"""
