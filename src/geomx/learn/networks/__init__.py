"""Gradient descent: small networks, trained by `run.attach` as any model of PyTorch is."""
