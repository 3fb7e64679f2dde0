"""The optimizer that `attach` gives back, where it runs (`placement.py`), and its state as slices."""
