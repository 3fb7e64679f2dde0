"""How a party's workers reduce among themselves: all-reduce, DDP or FSDP, over `torch.distributed`."""
