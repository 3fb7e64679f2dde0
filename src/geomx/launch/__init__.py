"""Starts and watches the processes of a run, and finds a process's place in one; the only reader of the environment.

One file or room for each way in: `join.py` (a training script), `local/` (`geomx run`, `geomx report`), `serve.py`,
`script.py` (`geomx worker`), `planning/` (`geomx plan`), `leave.py`, `inspect_codec.py`, `examples.py`; and for runs on
sites (`geomx up`) `sites.py`, `engines/`, `provision.py`, `doctor.py`, `init.py`, `site_commands.py`. `verdict.py`
says who failed first.
"""
