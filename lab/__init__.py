"""An emulated wide area network on one machine: a namespace for each site, a router in user space between
them.

A tool for developing and measuring; nothing of the package depends on it. See docs/lab.md.
"""

from lab.errors import LabError, Unavailable
from lab.lab import Lab

__all__ = ["Lab", "LabError", "Unavailable"]
