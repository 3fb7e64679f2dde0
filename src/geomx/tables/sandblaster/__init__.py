"""Sandblaster L-BFGS (Dean et al., NIPS 2012): `vectors.py` is a shard's part, `lbfgs.py` the first worker's algorithm.

`geomx.train.calls.minimizing` runs it.
"""
