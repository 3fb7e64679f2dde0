"""`geomx plan`: `plan.py` asks for predictions, the others say what of."""
