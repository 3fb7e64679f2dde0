from __future__ import annotations

import pytest
import torch
from wires import Witness, on_each_loop, state

from geomx.channels.inproc import InProc
from geomx.wire.messages import Ack, Refuse


async def pair(limit: int = 1 << 20):
    channel, ours, theirs = InProc(), Witness(), Witness(limit)
    door = await channel.listen("solo:0", theirs, theirs.accept)
    connection = await channel.dial(door.address, ours)
    return connection, ours, theirs.accepted[0], theirs


@on_each_loop
async def test_messages_cross_both_ways_and_payloads_change_hands():
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


@on_each_loop
async def test_the_most_urgent_of_what_was_written_together_arrives_first():
    ours, _, _, their = await pair()
    for priority in (9, 3, 7, 0):
        ours.write(priority, Ack(1), None, priority)
    await their.until(lambda: len(their.messages) == 4)
    assert their.numbers == [0, 3, 7, 9]


@on_each_loop
async def test_what_admit_refuses_ends_both():
    ours, mine, _, their = await pair(limit=10)
    ours.write(1, state(11), torch.zeros(11, dtype=torch.uint8), 0)
    assert await their.until_closed() == "more than this edge may carry"
    assert await mine.until_closed() == "closed by the peer"
    assert their.messages == []
    ours.write(2, Ack(1), None, 0)
    assert (len(mine.reasons), len(their.reasons)) == (1, 1)


@on_each_loop
async def test_close_says_the_last_words_and_nothing_else_and_gone_waits_for_them():
    ours, mine, theirs, their = await pair()
    theirs.write(1, Ack(1), None, 5)
    theirs.write(0, Refuse("run", "another run"), None, 0)
    ours.write(1, Ack(4), None, 0)  # on its way here when that closes
    theirs.close("refused")
    theirs.close("twice is once")
    theirs.write(2, Ack(2), None, 0)
    ours.write(1, Ack(3), None, 0)
    await theirs.gone()
    assert mine.messages == [(0, Refuse("run", "another run"), None)]
    assert (mine.reasons, their.reasons, their.messages) == (["closed by the peer"], [], [])


@on_each_loop
async def test_a_message_must_fit_its_payload():
    ours, _, _, _ = await pair()
    with pytest.raises(ValueError, match="says 5 payload bytes, but has 0"):
        ours.write(1, state(5), None, 0)


@on_each_loop
async def test_addresses_belong_to_one_listener_of_one_channel():
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
