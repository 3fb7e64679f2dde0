"""`run.save` and `run.load`: `save_load.py` is the call, `file.py` the format, `residuals.py` what codecs hold back."""
