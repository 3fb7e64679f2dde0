"""The few calls to the kernel that Python does not wrap: namespaces of threads, TUN devices, death with the parent."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.errors import Unavailable

TUN_DEVICE = Path("/dev/net/tun")
NAMESPACES = Path("/run/netns")  # where iproute2 keeps the named ones

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_CSUM, _TSO4, _USO4, _USO6 = 0x01, 0x02, 0x20, 0x40
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_CAPABILITIES = 1 << 12 | 1 << 21  # CAP_NET_ADMIN, CAP_SYS_ADMIN
_PRIORITY = 10  # of SCHED_RR, 1 to 99
_SLACK_NS = 1_000

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread, and what it opens, is in a named network namespace; others and what was open are not."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        target = os.open(NAMESPACES / namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(target, _CLONE_NEWNET), f"setns {namespace}")
        finally:
            os.close(target)
        try:
            yield
        finally:
            _check(_libc.setns(home, _CLONE_NEWNET), "setns back")
    finally:
        os.close(home)


def open_tun(name: str) -> int:
    """A TUN device in this thread's namespace, with vnet headers and segmentation offload; non-blocking."""
    device = os.open(TUN_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        request = struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR)
        fcntl.ioctl(device, _TUNSETIFF, request)
        try:
            fcntl.ioctl(device, _TUNSETOFFLOAD, _CSUM | _TSO4 | _USO4 | _USO6)
        except OSError:  # before Linux 6.2 there is none for UDP
            fcntl.ioctl(device, _TUNSETOFFLOAD, _CSUM | _TSO4)
    except OSError:
        os.close(device)
        raise
    return device


def die_with_parent(parent: int) -> None:
    """SIGTERM comes when the thread that started this process ends; `parent` is the process that it belongs to."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0), "PR_SET_PDEATHSIG")
    if os.getppid() != parent:  # it ended before this was set
        raise SystemExit(1)


def hurry() -> bool:
    """Run before everybody else, and wake on time; False where the kernel does not allow it."""
    _check(_libc.prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0), "PR_SET_TIMERSLACK")
    try:
        policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(_PRIORITY))
    except OSError:
        os.nice(-20)
        return False
    return True


def started_at(pid: int) -> str | None:
    """When a process began, in ticks since boot: with the pid it names a process for good. None where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state == "Z" else rest[18]


def require() -> None:
    """Unavailable, with all that is missing, where no lab can be had."""
    missing = missing_here()
    if missing:
        raise Unavailable("a lab cannot be had here: " + "; ".join(missing))


def missing_here() -> list[str]:
    """What a lab needs and this machine or user lacks, each with what to do; empty where all is there."""
    missing = []
    if os.geteuid() != 0:
        missing.append("it makes network namespaces, for which it must run as root (try sudo)")
    elif not _may_administer():
        missing.append(
            "this root lacks CAP_SYS_ADMIN or CAP_NET_ADMIN: run it outside of the container, or privileged"
        )
    if not TUN_DEVICE.exists():
        missing.append(f"{TUN_DEVICE} does not exist (try modprobe tun, or give the container this device)")
    elif os.geteuid() == 0:
        try:
            os.close(os.open(TUN_DEVICE, os.O_RDWR))
        except OSError as error:
            missing.append(
                f"{TUN_DEVICE} cannot be opened ({error.strerror}): give the container this device"
            )
    missing += [
        f"the command {command!r} was not found (apt install iproute2; or it lies in /usr/sbin, which PATH lacks)"
        for command in ("ip", "tc")
        if shutil.which(command) is None
    ]
    return missing


def _may_administer() -> bool:
    """Whether this process may make namespaces and network devices."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16) & _CAPABILITIES == _CAPABILITIES
    return False
