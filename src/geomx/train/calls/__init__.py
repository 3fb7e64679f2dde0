"""Collective calls of a worker: `collective_client.py` sends and waits, `broadcast.py` assigns and averages."""
