"""Which contributions are in, who is expected, and when a round closes: no torch, no sockets.

`membership.py` (who is in a run, who moves in step), `turn.py` (the turns of a server, each with its rounds),
`round.py` (one slice of a turn), `gathering.py` (asks the policy which rounds close), `turn_log.py` (what is told of
turns), `step_control.py` (policies that say how many steps).
"""
