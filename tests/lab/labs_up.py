"""Labs that are really up, and what goes over them. Skipped, with the reason, where there can be none."""

import hashlib
import os
import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

from lab import Lab, system
from lab.describe import describe

MISSING = system.missing_here()
in_a_lab = [pytest.mark.lab, pytest.mark.skipif(bool(MISSING), reason="; ".join(MISSING))]
GIVE_UP_S = 300.0


def up(*sites, **table):
    """A lab that is not yet up; a site is its name or its table."""
    default = {"rate_mbps": 200, "delay_ms": 1, "queue_ms": 500}
    described = [{"name": site} if isinstance(site, str) else site for site in sites]
    return Lab(describe({"site": described, "default": default, "congestion": "cubic", **table}, "test"))


def until(condition):
    give_up_at = time.monotonic() + GIVE_UP_S
    while not condition():
        assert time.monotonic() < give_up_at, "what was waited for did not come"
        time.sleep(0.02)


@contextmanager
def connection(lab, a, b, host=1, to_host=1):
    """Both ends of a TCP connection."""
    with ExitStack() as stack:
        with lab.inside(b, to_host):
            listener = stack.enter_context(socket.create_server((lab.address(b, to_host), 0)))
        with lab.inside(a, host):
            near = stack.enter_context(socket.socket())
        listener.settimeout(GIVE_UP_S)
        near.settimeout(GIVE_UP_S)
        near.connect(listener.getsockname())
        far, _ = listener.accept()
        far.settimeout(GIVE_UP_S)
        yield near, stack.enter_context(far)


def carried(near, far, size_bytes=300_000):
    """Whether so much comes through unharmed, each way."""
    for sender, receiver in ((near, far), (far, near)):
        payload = os.urandom(size_bytes)
        thread = threading.Thread(target=sender.sendall, args=(payload,))
        thread.start()
        seen, left = hashlib.sha256(), size_bytes
        while left and (part := receiver.recv(min(left, 1 << 16))):
            seen.update(part)
            left -= len(part)
        thread.join()
        if seen.digest() != hashlib.sha256(payload).digest():
            return False
    return True
