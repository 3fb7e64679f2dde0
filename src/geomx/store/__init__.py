"""Where a run keeps what must outlive a process: a folder, or a bucket.

`contract.py` says what a store can do, `folder.py` and `bucket.py` do it; `log.py` keeps a log in one, and `terms.py`
says who may write it.
"""
