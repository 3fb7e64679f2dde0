"""What every process of `party_jobs` needs, imported once, before they are forked."""

from torch.distributed.fsdp import fully_shard

import geomx
from geomx.optim.base import optimizers

optimizers.find("SGD")("SGD")

__all__ = ["fully_shard", "geomx"]
