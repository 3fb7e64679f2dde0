"""What happens in `optimizer.step()`: one file for each kind of step that a policy plans.

`contract.py` has what they share; `gradient.py` (gradients go up in backward), `local.py` (pseudo-gradients after local
steps), `accumulate.py` (gradients add up first). `pending.py` lets a forward begin before all weights are there.
"""
