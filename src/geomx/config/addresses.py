"""Addresses as a description writes them: `host:port`, with an IPv6 address in brackets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address

MOST_PORT = 65_535
LONGEST_HOST = 253  # of the domain name system

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"


def why_not(address: str, dialled: bool) -> str:
    """What is wrong with an address, as a hint; nothing where nothing is.

    Args:
        address: `host:port`, which need not be one.
        dialled: others dial it. Else a server listens there, which may be at all addresses of its machine.
    """
    if "://" in address:
        return f"leave out `{address.partition('://')[0]}://`"
    host, colon, port = address.rpartition(":")
    if host.count(":") and not host.startswith("["):
        bare, number = (host, port) if is_ipv6(host) else (address, "7000")
        return f"an IPv6 address stands in brackets: `[{bare}]:{number}`"
    if not colon or (host.startswith("[") and not host.endswith("]")):
        return f"the port is missing: `{address}:7000`" if address else "it is empty"
    return _why_no_host(host, dialled) or _why_no_port(port)


def _why_no_port(port: str) -> str:
    right = re.fullmatch(r"[1-9][0-9]{0,4}", port) and int(port) <= MOST_PORT
    return "" if right else f"a port is 1 to {MOST_PORT}"


def _why_no_host(host: str, dialled: bool) -> str:
    if host.startswith("["):
        if not is_ipv6(host[1:-1]):
            return f"`{host[1:-1]}` is no IPv6 address"
        anywhere = IPv6Address(host[1:-1]).is_unspecified
    elif host.rpartition(".")[2].isdigit():  # no name ends so
        if not _is_ipv4(host):
            return f"`{host}` is no IPv4 address: four numbers from 0 to 255"
        anywhere = IPv4Address(host).is_unspecified
    else:
        labels = host.removesuffix(".").split(".")
        right = len(host) <= LONGEST_HOST and all(re.fullmatch(_LABEL, label, re.ASCII) for label in labels)
        return "" if right else f"`{host}` is no name of a host" if host else "the host is missing"
    return (
        "nobody can dial it: give it as `listen`, and here what others dial" if anywhere and dialled else ""
    )


def each_of(given: Iterable[str | Sequence[str]]) -> list[str]:
    """All addresses, of which a server may have several."""
    return [address for several in given for address in ([several] if isinstance(several, str) else several)]


def place_of(address: str) -> str:
    """The same text for addresses that mean the same: upper case, `localhost`, ways to write an IPv6 address."""
    host, _, port = address.rpartition(":")
    if host.startswith("["):
        host = f"[{IPv6Address(host[1:-1])}]"
    host = host.lower().removesuffix(".")
    return f"{'127.0.0.1' if host == 'localhost' else host}:{port}"


def is_ipv6(text: str) -> bool:
    """Whether a text is an IPv6 address, without brackets."""
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True


def _is_ipv4(text: str) -> bool:
    try:
        IPv4Address(text)
    except AddressValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Whether an address can be reached from its own machine alone."""
    host = place_of(address).rpartition(":")[0]
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
