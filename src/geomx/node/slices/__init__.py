"""What a node keeps and does for each slice.

`update_stream.py` (both ends of what goes down), `accumulate.py` (adding), `finite.py` (NaN and Inf), `clipping.py`
(the global norm), `slice_jobs.py` (one job at a time), `slice_state.py` (what a checkpoint keeps), `join_state.py`
(what a joiner is sent), `patched.py` (the same where only rows go down), `payloads.py` (what travels and is no slice).
"""
