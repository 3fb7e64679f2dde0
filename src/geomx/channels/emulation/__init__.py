"""A WAN on one machine, without root: the model of a link, and the clock that runs it on an event loop."""
