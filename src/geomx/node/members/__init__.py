"""Who takes part, at servers: who is let in, lost, back, and who leaves.

`attendance.py` first: a server's part. `reception.py` lets in behind the model, `ending.py` ends. At shards, `top.py`
speaks to the others, `roster_keeper.py` decides who takes part, and `whole_turns.py` when turns close that count as a
whole.
"""
