"""What connections do depends neither on how busy the machine is nor on which loop runs them."""

from wires import loop_name, patient

__all__ = ["loop_name", "patient"]
