"""Whether this machine, and those of a run's sites, can run it well: what `geomx doctor` looks at.

Each finding is one line: fine, or what is wrong with what to do about it. It changes nothing.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from geomx import __version__
from geomx.channels.congestion import available
from geomx.config import Run
from geomx.config.addresses import each_of, place_of
from geomx.launch.environment import THREADS
from geomx.launch.sites import prepared

Verdict = Literal["fine", "note", "wrong"]
DIAL_S = 5.0
LEAST_FILES = 1024  # open ones: sockets, and shared memory of loaders
LEAST_MEMORY_MB, LEAST_DISK_MB = 1000, 500
LEAST_BUFFER = 4 << 20  # bytes that the kernel keeps of datagrams: 100 Mbit/s for a third of a second
ETHERNET_MTU = 1500
IP_MTU, IP_MTU_DISCOVER, IP_PMTUDISC_DO = 14, 10, 2


class Finding(NamedTuple):
    """One line: what was looked at, and for what is not fine what to do."""

    verdict: Verdict
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.verdict:<6}{self.text}{f': {self.remedy}' if self.remedy else ''}"


def doctor(run: Run | None, file: Path | None) -> bool:
    """Print what is found on this machine, and by `run` on its way to the global servers and on its sites' machines.

    Gives whether nothing is wrong.
    """
    is_well = True
    for finding in findings(run, file):
        print(finding, flush=True)
        is_well = is_well and finding.verdict != "wrong"
    return is_well


def findings(run: Run | None, file: Path | None) -> Iterator[Finding]:
    """All of them, in the order in which they are looked at."""
    yield from _software()
    yield from _machine()
    if run is not None and file is not None:
        for shard, given in zip(run.shard_names, run.global_.addresses, strict=False):
            for address in each_of([given]):
                yield from _way_to(shard, address, datagrams=run.wan.channel.split()[0] != "tcp")
        if run.sites:
            for words, lines in prepared(run, file):
                yield from (Finding("wrong", f"{words}: {line}") for line in lines)
                if not lines:
                    yield Finding("fine", f"{words} is ready")


def _software() -> Iterator[Finding]:
    yield Finding(
        "fine",
        f"geomx {__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}",
    )
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        yield Finding("wrong", "no PyTorch", 'pip install "torch>=2.6"')
        return
    import torch  # noqa: PLC0415 (it takes seconds, and may be missing)

    from geomx.codecs.pack import native  # noqa: PLC0415 (it imports torch)

    yield Finding("fine", f"PyTorch {version}")
    if native.available():
        yield Finding("fine", "the codecs' kernels are compiled")
    else:
        yield Finding(
            "note",
            "codecs run without their compiled kernels, several times slower",
            "install a C compiler, then geomx anew",
        )
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        yield Finding("fine", f"CUDA {torch.version.cuda}: {names}")
    elif shutil.which("nvidia-smi"):
        yield Finding(
            "wrong",
            "PyTorch sees no GPU, and the machine has NVIDIA's driver",
            "install a build of PyTorch with CUDA",
        )
    else:
        yield Finding("fine", "no GPU")


def _machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    threads = next((f"{name}={os.environ[name]}" for name in THREADS if os.environ.get(name)), "")
    if threads.partition("=")[2].isdecimal() and int(threads.partition("=")[2]) > cores:
        yield Finding(
            "wrong", f"{threads} on {cores} cores", "processes will wait for each other; leave it unset"
        )
    else:
        yield Finding("fine", f"{cores} cores, {threads or 'threads shared among the processes of a run'}")
    disk_mb = shutil.disk_usage(Path.home()).free >> 20
    yield _at_least(
        f"MB of disk are free at {Path.home()}",
        disk_mb,
        LEAST_DISK_MB,
        "make room for records and checkpoints",
    )
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield _at_least(
        "files may be open", files, LEAST_FILES, f"ulimit -n {min(most, 65536) if most > 0 else 65536}"
    )
    if sys.platform == "linux":
        memory_mb = int(re.findall(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())[0]) >> 10
        yield _at_least(
            "MB of memory are free", memory_mb, LEAST_MEMORY_MB, "a worker takes 300 MB and its model"
        )
        yield _clock()
        yield _congestion()
        buffer = int(Path("/proc/sys/net/core/rmem_max").read_text())
        remedy = f"for datagrams at full rate: sysctl net.core.rmem_max={LEAST_BUFFER} net.core.wmem_max={LEAST_BUFFER}"
        few = _at_least("bytes may wait in a socket", buffer, LEAST_BUFFER, remedy)
        yield few._replace(verdict="note") if few.verdict == "wrong" else few  # TCP's own are others


def _at_least(what: str, found: int, least: int, remedy: str) -> Finding:
    if found >= least or found < 0:
        return Finding("fine", f"{found:,} {what}")
    return Finding("wrong", f"{found:,} {what}, {least:,} are needed", remedy)


def _clock() -> Finding:
    """Whether something keeps the kernel's clock right; that of another machine is compared where sites are asked."""
    try:
        import ctypes  # noqa: PLC0415 (only here)

        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return Finding("note", "whether the clock is set by NTP cannot be told here")
    if state == 5:  # TIME_ERROR: nobody has set it
        return Finding(
            "note",
            "nothing keeps the clock right",
            "run chrony or systemd-timesyncd: certificates begin and end by it",
        )
    return Finding("fine", "the clock is kept right")


def _congestion() -> Finding:
    if "bbr" in available():
        return Finding("fine", "TCP BBR is there")
    return Finding("note", "no TCP BBR, which links that lose packets need", "modprobe tcp_bbr")


def _way_to(shard: str, address: str, datagrams: bool) -> Iterator[Finding]:
    """From here to a global server: by TCP, and how large a packet may be."""
    host, _, port = place_of(address).rpartition(":")
    began = time.monotonic()
    try:
        with socket.create_connection((host.strip("[]"), int(port)), DIAL_S):
            yield Finding(
                "fine", f"{shard} at {address} answers after {1000 * (time.monotonic() - began):.0f} ms"
            )
    except ConnectionRefusedError:
        yield Finding("note", f"{address} can be reached, and nobody listens there by now")
    except OSError as error:
        remedy = "is it the right address, and does a firewall let it through?"
        yield Finding("wrong", f"{shard} at {address} cannot be reached ({error.strerror or error})", remedy)
        return
    if sys.platform == "linux":
        mtu = _mtu(host.strip("[]"), int(port))
        if mtu and mtu < ETHERNET_MTU:
            yield Finding(
                "note",
                f"packets to {host} have at most {mtu} bytes",
                "a tunnel is in the way; TCP adapts, and so do datagrams",
            )
        elif mtu:
            yield Finding("fine", f"packets to {host} may have {mtu} bytes")
    if datagrams:
        yield Finding(
            "note",
            f"whether UDP passes to {address} shows when the run starts",
            "it must be let through as TCP is",
        )


def _mtu(host: str, port: int) -> int:
    """Of the path, as far as the kernel knows it; 0: it does not."""
    try:
        family, kind, proto, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as sock:
            if family == socket.AF_INET:
                sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
                sock.connect(place)
                return sock.getsockopt(socket.IPPROTO_IP, IP_MTU)
    except OSError:
        pass
    return 0
