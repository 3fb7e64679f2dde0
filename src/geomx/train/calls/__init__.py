"""Calls of a worker that are no steps.

`run_calls.py` is what a script calls: `collectives.py` and `arrays.py`, `tables.py` and `requests.py`, `minimizing.py`.
Below all of these, and below steps, `collective_client.py` sends and waits; `broadcast.py` assigns and averages.
"""
