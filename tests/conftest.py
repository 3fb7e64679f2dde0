"""What all tests have in common: one thread of arithmetic each, and no judgement by the clock."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("geomx", deadline=None, print_blob=True)
settings.load_profile("geomx")
