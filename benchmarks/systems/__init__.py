"""The systems that are compared: `adapters.py` says what each runs where, and in which configurations.

Each has a folder: `train.py` is what a worker runs, in the system's own environment, whose pinned packages are in
`requirements.txt`; without that file the runner's environment serves.
"""
