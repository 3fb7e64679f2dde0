"""What a connection does when its time is over must not depend on how busy the machine is."""

from wires import patient

__all__ = ["patient"]
