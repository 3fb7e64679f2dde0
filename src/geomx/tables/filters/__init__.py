"""What a worker does not send of what it pushes: one file a filter, `contract.py` first."""
