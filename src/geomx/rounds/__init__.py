"""Which contributions are in, who is expected, and when a round closes: no torch, no sockets.

`membership.py` (who is in a run, who moves in step), `round.py` (one slice's rounds), `gathering.py` (a server's
rounds, which asks the policy), `turn_log.py` (what is told of them), `step_control.py` (policies that say how many
steps).
"""
