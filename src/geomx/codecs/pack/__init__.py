"""What payloads are made of: number forms, columns, indices, packed bits, keyed noise, and the compiled kernels.

Every operation exists as torch operations and, in `kernels/` behind `native.py`, as C with the same bits.
"""
