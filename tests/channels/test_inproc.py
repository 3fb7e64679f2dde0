from __future__ import annotations

import pytest
import torch
from wires import Witness, run_on, state

from geomx.channels.inproc import InProc
from geomx.wire.messages import Ack, Refuse


def run(main):
    return run_on("asyncio", main)


async def pair(limit: int = 1 << 20):
    channel, ours, theirs = InProc(), Witness(), Witness(limit)
    door = await channel.listen("solo:0", theirs, theirs.accept)
    connection = await channel.dial(door.address, ours)
    return connection, ours, theirs.accepted[0], theirs


def test_messages_cross_both_ways_and_payloads_change_hands():
    async def main():
        ours, mine, theirs, their = await pair()
        payload = torch.arange(100, dtype=torch.uint8)
        ours.write(1, state(100), payload, 0)
        theirs.write(1, Ack(1), None, 0)
        await their.until(lambda: bool(their.messages))
        await mine.until(lambda: bool(mine.messages))
        got = their.messages[0][2]
        assert torch.equal(got, payload)
        got.zero_()  # the receiver's own
        assert payload[99] == 99
        assert mine.messages == [(1, Ack(1), None)]
        assert ours.ident != theirs.ident

    run(main)


def test_the_most_urgent_of_what_was_written_together_arrives_first():
    async def main():
        ours, _, _, their = await pair()
        for priority in (9, 3, 7, 0):
            ours.write(priority, Ack(1), None, priority)
        await their.until(lambda: len(their.messages) == 4)
        assert their.numbers == [0, 3, 7, 9]

    run(main)


def test_what_admit_refuses_ends_both():
    async def main():
        ours, mine, _, their = await pair(limit=10)
        ours.write(1, state(11), torch.zeros(11, dtype=torch.uint8), 0)
        assert await their.until_closed() == "more than this edge may carry"
        assert await mine.until_closed() == "closed by the peer"
        assert their.messages == []
        ours.write(2, Ack(1), None, 0)
        assert (len(mine.reasons), len(their.reasons)) == (1, 1)

    run(main)


def test_close_says_the_last_words_and_nothing_else():
    async def main():
        ours, mine, theirs, their = await pair()
        theirs.write(1, Ack(1), None, 5)
        theirs.write(0, Refuse("run", "another run"), None, 0)
        theirs.close("refused")
        theirs.close("twice is once")
        theirs.write(2, Ack(2), None, 0)
        ours.write(1, Ack(3), None, 0)
        await mine.until_closed()
        assert mine.messages == [(0, Refuse("run", "another run"), None)]
        assert (mine.reasons, their.reasons, their.messages) == (["closed by the peer"], [], [])

    run(main)


def test_what_is_on_its_way_to_one_that_has_closed_is_dropped():
    async def main():
        ours, mine, theirs, their = await pair()
        ours.write(1, Ack(3), None, 0)
        theirs.close("done")
        await mine.until_closed()
        assert their.messages == []

    run(main)


def test_gone_waits_for_the_last_words():
    async def main():
        _, mine, theirs, _ = await pair()
        theirs.write(0, Refuse("run", "another run"), None, 0)
        theirs.close("refused")
        await theirs.gone()
        assert mine.messages == [(0, Refuse("run", "another run"), None)]
        assert mine.reasons == ["closed by the peer"]

    run(main)


def test_a_message_must_fit_its_payload():
    async def main():
        ours, _, _, _ = await pair()
        with pytest.raises(ValueError, match="says 5 payload bytes, but has 0"):
            ours.write(1, state(5), None, 0)

    run(main)


def test_addresses_belong_to_one_listener_of_one_channel():
    async def main():
        channel = InProc()
        doors = [await channel.listen("solo:0", Witness(), lambda _: None) for _ in range(2)]
        assert doors[0].address != doors[1].address
        with pytest.raises(OSError, match="listens at"):
            await channel.listen(doors[0].address, Witness(), lambda _: None)
        with pytest.raises(ConnectionRefusedError):
            await InProc().dial(doors[0].address, Witness())
        await doors[0].close()
        with pytest.raises(ConnectionRefusedError):
            await channel.dial(doors[0].address, Witness())

    run(main)
