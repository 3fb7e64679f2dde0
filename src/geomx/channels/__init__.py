"""How bytes cross an edge: one file a channel, `contract.py` first.

`tcp.py` (with `connection.py`, `tls.py`, `congestion.py`) and `inproc.py` are the channels; `emulation/` imitates slow
links in user space. From outside: the contract, the channels, and `emulation` for whoever describes links.
"""
