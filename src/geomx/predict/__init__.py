"""How long a round will take, and what it will send, before anything runs. `docs/plan.md` says how near it comes.

`formulas.py` first; `facts.py` is what they are fed with, `exchange.py` one exchange, `steps.py` a policy's steps,
one after the other; `words.py` what an algorithm costs in training. `geomx.launch.planning.plan` is the command.
"""
