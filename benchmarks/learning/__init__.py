"""The cases of `benchmarks/learn.py`: data, references and ours."""
