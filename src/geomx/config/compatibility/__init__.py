"""What goes together, and what follows from it.

`rules.py` is what keys must be to each other, `choice_rules.py` what policies, codecs and rules must be,
`lossy_channels.py` what channels that lose. `decision.py` says what follows from a description's `choices.py` and a
training `script.py`: where the optimizer steps, what is refused, and the `known_costs.py`. `notices.py` tells what is
no fault, `presets.py` what goes well together.
"""
