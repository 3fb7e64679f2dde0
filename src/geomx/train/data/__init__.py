"""A worker's share of the data (`loader.py`), and how much its contributions count (`samples.py`)."""
