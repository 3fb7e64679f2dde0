"""Between a user's model and the slices of a layout: `model_slices.py` first.

`fsdp.py` knows what a process holds of a tensor that is cut; `rows.py` has sparse gradients; `support.py` and
`guard.py` refuse what cannot be carried and notice what may not change.
"""
