"""What a shard keeps so that it can be started again: the log of what it decides, and now and then its whole state.

`shard_log.py` (where a server meets it), `records.py` (what stands in the log), `journal.py` (writing it, and going on
once it is there), `replay.py` (deciding the same again), `cut.py` (the whole state), `state.py` (what a root gives for
that), `replicas.py` (another shard has the log in memory).
"""
