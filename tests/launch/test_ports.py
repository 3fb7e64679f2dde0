from __future__ import annotations

import contextlib
import socket
import sys

import pytest
from torch.distributed import TCPStore
from wires import LOOPS, Witness, run_on

from geomx.channels.tcp import Tcp
from geomx.config import Run
from geomx.errors import ConfigError
from geomx.launch.local.ports import Ports

MANY = 300  # as many sockets as any system lets a process have
linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux lets others listen at a held port"
)


@linux_only
def test_a_held_port_is_given_to_nobody_else() -> None:
    with Ports() as ports, contextlib.ExitStack() as others:
        held = {ports.hold() for _ in range(MANY)}
        assert len(held) == MANY
        doors = [others.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(MANY)]
        assert held.isdisjoint(door.getsockname()[1] for door in doors)


@linux_only
@pytest.mark.parametrize("loop_name", LOOPS)
def test_a_server_listens_at_a_held_port_again_and_again(loop_name: str) -> None:
    async def main() -> None:
        with Ports() as ports:
            address = f"127.0.0.1:{ports.hold()}"
            for _ in range(2):
                witness = Witness()
                door = await Tcp().listen(address, witness, witness.accept)
                (await Tcp().dial(address, Witness())).close("done")
                await witness.until(lambda heard=witness: bool(heard.reasons))
                await door.close()

    run_on(loop_name, main)


@linux_only
def test_so_does_the_store_of_a_job() -> None:
    with Ports() as ports:
        store = TCPStore("127.0.0.1", ports.hold(), 1, is_master=True)
        store.set("key", "value")
        assert store.get("key") == b"value"


@linux_only
def test_ports_are_free_once_they_are_let_go() -> None:
    with Ports() as ports:
        held = [ports.hold() for _ in range(50)]
        assert not any(map(can_be_bound, held))
    assert any(map(can_be_bound, held))  # but for those that somebody else has taken meanwhile


RUN = """
run.secret_file = "s"
wan.channel = "{}"
[global]
addresses = ["{}"]
[[party]]
name = "A"
workers = 1
"""


def run_at(address: str, channel: str = "tcp") -> Run:
    return Run.parse(RUN.format(channel, address), "run.toml")


@pytest.mark.parametrize("channel", ["tcp", "datagram", "dgt k=0.5"])
def test_an_address_where_somebody_listens_cannot_be_claimed(channel: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door, Ports() as ports:
        address = f"127.0.0.1:{door.getsockname()[1]}"
        with pytest.raises(
            ConfigError,
            match=f"global/0: 1 fault\n.*global\\.addresses\\[0\\]: found {address}.*already in use",
        ):
            ports.claim(run_at(address, channel), "global/0", by="geomx serve")


def test_an_address_of_another_machine_cannot_be_claimed() -> None:
    with Ports() as ports, pytest.raises(ConfigError, match=r"addresses\[0\]: found 192\.0\.2\.1:7000"):
        ports.claim(run_at("192.0.2.1:7000"), "global/0", by="geomx serve")


@linux_only
def test_of_two_that_begin_at_the_same_time_one_has_the_address() -> None:
    """Though neither listens yet; and beside the socket by which `geomx run` holds a port."""
    with Ports() as holder:
        run = run_at(f"127.0.0.1:{holder.hold()}")
        for _ in range(2):
            with Ports() as first, Ports() as second:
                first.claim(run, "global/0", by="geomx serve")
                with pytest.raises(ConfigError, match="another `geomx serve` of this machine has it"):
                    second.claim(run, "global/0", by="geomx serve")
                second.claim(run, "global/0", by="geomx run")  # whose servers claim it as well


def can_be_bound(port: int) -> bool:
    with socket.socket() as plain:
        try:
            plain.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
