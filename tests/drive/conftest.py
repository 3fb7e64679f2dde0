"""Real connections here, too, are as patient as those of the channels' tests."""

from wires import patient

__all__ = ["patient"]
