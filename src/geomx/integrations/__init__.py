"""Trainers of others, in a run. Each module needs its library, and is imported by whoever uses it."""
