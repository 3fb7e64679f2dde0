"""What can be seen of a run: `records.py` is the source, `live.py`, `report.py` and `trace.py` are views of it."""
