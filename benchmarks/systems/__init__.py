"""The systems that are compared, each with its `train.py` and, where they are its own, its pinned packages."""
