"""MXNet's and GeoMX's key-value store over a run, for code that pushes gradients and pulls weights by hand.

    kv = geomx.kvstore.create("dist_sync")
    kv.init(keys, values)
    kv.set_optimizer(functools.partial(torch.optim.Adam, lr=0.001))
    kv.push(keys, gradients)
    kv.pull(keys, out=values)

A training loop of PyTorch needs none of this: see `geomx.join`.
"""

from geomx.kvstore.store import KVStore, create

__all__ = ["KVStore", "create"]
