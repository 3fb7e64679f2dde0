"""Starts and watches the processes of a run, and finds a process's place in one; the only reader of the environment.

One file for each way in: `join.py` (a training script), `local_run.py` (`geomx run`), `serve.py`, `script.py`
(`geomx worker`), `plan.py`, `gather.py` (`geomx report`), `inspect_codec.py`, `examples.py`. `processes.py`
and `child.py` watch what they start, `verdict.py` says who failed first.
"""
