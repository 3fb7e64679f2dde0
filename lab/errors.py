"""What the lab raises beside the `ConfigError` of a wrong description. A message says what is wrong and what to do."""

from __future__ import annotations


class LabError(Exception):
    """The root of the tree; the commands print it without a traceback."""


class Unavailable(LabError):
    """This machine, or this user, cannot have a lab; the message names what is missing."""


class RouterError(LabError):
    """The router ended, did not answer, or refused a request."""
