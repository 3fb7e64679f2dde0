"""A UDP socket that sends and receives several datagrams with one system call, where the kernel can.

Linux calls it segmentation offload (UDP_SEGMENT, since 4.18) and receive offload (UDP_GRO, since 5.0). One buffer holds
datagrams of the same size, of which only the last one may be shorter, and a control message says that size. On the
network they are datagrams like any others. Older kernels and some devices refuse; then they go one by one.

A socket that receives at every address of the machine would answer from the one that the route prefers. Whoever has
dialled another address does not hear that, so a control message (IP_PKTINFO, IPV6_PKTINFO) names the source.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

BUFFER_BYTES = 4 << 20
MOST_TOGETHER, MOST_TOGETHER_BYTES = 64, 65_000  # segments of old kernels; what a packet of IP holds
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER = 10, 23  # linux/in.h, linux/in6.h
_PMTUDISC_PROBE = 3  # for both: never in fragments, whatever a router says
_IP_PKTINFO = 8  # linux/in.h: interface, source address, and one that is of no use here
_SOURCE_V4, _SOURCE_V6 = struct.Struct("=i4s4x"), struct.Struct("=16si")
_SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104  # linux/udp.h
_SENT_SIZE, _CAME_SIZE = struct.Struct("=H"), struct.Struct("=i")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_CAME_SIZE.size)
_REFUSALS = (errno.EINVAL, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EMSGSIZE)

Control = tuple[int, int, bytes]  # a control message: level, kind, data


def leaving_from(name: Any) -> Control:
    """The control message with which datagrams leave from one of this machine's addresses.

    Args:
        name: The address, as `getsockname` of a connection there gives it.
    """
    if len(name) == 2:
        return socket.IPPROTO_IP, _IP_PKTINFO, _SOURCE_V4.pack(0, socket.inet_aton(name[0]))
    address = socket.inet_pton(socket.AF_INET6, name[0])
    return socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, _SOURCE_V6.pack(address, name[3])


class UdpSocket:
    """A socket that waits for nothing, sends no fragments, and holds bursts."""

    def __init__(self, family: int) -> None:
        """Args:
            family: `socket.AF_INET` or `AF_INET6`.

        Raises:
            OSError: There can be none.
        """
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._buffer = memoryview(bytearray(1 << 16))
        self._option(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._option(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        if family == socket.AF_INET:
            self._option(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
        else:
            self._option(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
        self._option(_SOL_UDP, UDP_GRO, 1)
        # 0: what a call does not ask for goes alone. An old kernel would ignore what calls ask for.
        self._sends_together = self._option(_SOL_UDP, UDP_SEGMENT, 0)

    def _option(self, level: int, name: int, value: int) -> bool:
        """Whether the kernel took it."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(level, name, value)
            return True
        return False

    def bind(self, address: Any) -> None:
        """Receive at this address; at `::` nothing of IPv4, as TCP sockets of event loops. Raises OSError."""
        if self._socket.family == socket.AF_INET6:
            self._option(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        self._socket.bind(address)

    def connect(self, address: Any) -> None:
        """Send to this address, and hear only from it. Raises OSError."""
        self._socket.connect(address)

    def fileno(self) -> int:
        """For whoever waits for datagrams."""
        return self._socket.fileno()

    def close(self) -> None:
        """Nothing is sent or received any more."""
        self._socket.close()

    def send(self, datagram: bytes, address: Any = None, source: Control | None = None) -> bool:
        """Send one datagram; what the kernel does not take now is lost.

        Args:
            datagram: Its bytes.
            address: Where to; None: where the socket is connected to.
            source: Where from, see `leaving_from`; None: from the address that the route prefers.

        Returns:
            Whether the kernel took it.
        """
        return self._send([datagram], [] if source is None else [source], address) is None

    def _send(self, buffers: Sequence[bytes], controls: Sequence[Control], address: Any) -> OSError | None:
        """Why the kernel did not take it; None: it did."""
        try:
            if controls:
                self._socket.sendmsg(buffers, controls, 0, address)
            elif address is None:
                self._socket.send(buffers[0])
            else:
                self._socket.sendto(buffers[0], address)
        except OSError as error:
            return error
        return None

    def send_together(
        self, datagrams: Sequence[bytes], address: Any = None, source: Control | None = None
    ) -> None:
        """Send datagrams in their order; what the kernel does not take now is lost.

        Not for sizes of which it is not known whether they pass: where one is too large, others are lost with it.

        Args:
            datagrams: Of any sizes. Those of the same size that follow each other leave together.
            address: As in `send`.
            source: As in `send`.
        """
        first = 0
        while first < len(datagrams):
            end = _run_end(datagrams, first) if self._sends_together else first + 1
            if end == first + 1:
                self.send(datagrams[first], address, source)
            else:
                self._send_run(datagrams[first:end], address, source)
            first = end

    def _send_run(self, run: Sequence[bytes], address: Any, source: Control | None) -> None:
        """Send datagrams of one size. Where the kernel takes them only one by one, it is not asked again."""
        controls: list[Control] = [(_SOL_UDP, UDP_SEGMENT, _SENT_SIZE.pack(len(run[0])))]
        if source is not None:
            controls.append(source)
        error = self._send(run, controls, address)
        if error is not None and error.errno in _REFUSALS:
            taken = [self.send(datagram, address, source) for datagram in run]
            self._sends_together = not taken[0]  # else it refuses this size, or this address

    def receive(self, most: int) -> Iterator[tuple[memoryview, Any]]:
        """Take datagrams that have come.

        Args:
            most: Ask the kernel no more after so many.

        Yields:
            A datagram, and whom it is from. Its bytes change with the next one.
        """
        count = 0
        while count < most:
            try:
                size, ancillary, _, address = self._socket.recvmsg_into([self._buffer], _ANCILLARY_BYTES)
            except OSError:
                return
            step = size
            for level, kind, data in ancillary:
                if (level, kind) == (_SOL_UDP, UDP_GRO):
                    (step,) = _CAME_SIZE.unpack(data)
            for start in range(0, size, max(step, 1)):
                yield self._buffer[start : min(start + step, size)], address
                count += 1
            count += not size


def _run_end(datagrams: Sequence[bytes], first: int) -> int:
    """Where the datagrams end that can leave together with the first one."""
    size = len(datagrams[first])
    most = first + min(MOST_TOGETHER, max(MOST_TOGETHER_BYTES // max(size, 1), 1))
    for place in range(first + 1, min(most, len(datagrams))):
        if len(datagrams[place]) != size:
            is_shorter = 0 < len(datagrams[place]) < size
            return place + is_shorter
    return min(most, len(datagrams))
