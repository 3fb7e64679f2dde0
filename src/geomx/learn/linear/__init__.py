"""Linear models, by Newton's method on the primal: `newton.py`, and one file an objective."""
