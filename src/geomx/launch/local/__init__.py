"""A whole run on this machine: `local_run.py` first.

`processes.py` starts and watches, `child.py` and `guardian.py` are in the processes that it starts, `ports.py` and
`slow_worker.py` prepare them; `outputs.py` shows what they write, `gather.py` collects what they have recorded.
"""
