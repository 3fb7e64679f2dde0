"""What a shard keeps so that it can be started again: the log of what it decides, and now and then its whole state.

`records.py` (what stands in the log), `journal.py` (writing it, and going on once it is there), `replay.py` (deciding
the same again), `cut.py` (the whole state).
"""
