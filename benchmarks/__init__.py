"""Every figure beside its peers and its floor: `python benchmarks/run.py SUITE`."""
