import types
import typing

import msgspec
import pytest
from exploring import examples
from hypothesis import given
from hypothesis import strategies as st

from geomx.wire import messages
from geomx.wire.messages import (
    HEAD_LIMIT_BYTES,
    AnyMessage,
    Beat,
    Push,
    Reading,
    Update,
    decode_head,
    encode_head,
    payload_size,
)

KINDS = typing.get_args(AnyMessage)
LEAVES = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=8),
    bool: st.booleans(),
    types.NoneType: st.none(),
}


def values_of(hint):
    """Anything that a field of this type can hold."""
    if hint in LEAVES:
        return LEAVES[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([values_of(each) for each in arguments])
    if origin is dict:
        return st.dictionaries(*(values_of(each) for each in arguments), max_size=3)
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(values_of(each) for each in arguments))
    if issubclass(hint, tuple):
        return st.builds(hint, *(values_of(each) for each in typing.get_type_hints(hint).values()))
    return structs(hint)


def structs(kind):
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: values_of(hints[name]) for name in kind.__struct_fields__})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@examples(20)
@given(data=st.data())
def test_every_message_survives_the_wire(kind, data):
    message = data.draw(structs(kind))
    back = decode_head(encode_head(message))
    assert type(back) is kind
    assert back == message


def test_every_message_has_a_tag_of_its_own():
    tags = [kind.__struct_config__.tag for kind in KINDS]
    assert len(set(tags)) == len(tags)
    every = {
        each
        for each in vars(messages).values()
        if isinstance(each, type) and issubclass(each, messages.Message)
    }
    assert every - {messages.Message} == set(KINDS)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\xc1",
        encode_head(Beat(7, 9, 0.0))[:-1],
        encode_head(Beat(7, 9, 0.0)) + b"\x00",
        msgspec.msgpack.encode(["Pickle", b"cos\nsystem\n"]),
        msgspec.msgpack.encode(["Message"]),
        msgspec.msgpack.encode([7, 7]),
        msgspec.msgpack.encode(["Beat"]),
        msgspec.msgpack.encode(["Beat", "7"]),
        msgspec.msgpack.encode(["Beat", 7.5]),
        msgspec.msgpack.encode({"received": 7}),
        msgspec.msgpack.encode(["Refuse", "whim", "no"]),
    ],
)
def test_what_is_no_message_is_refused(head):
    with pytest.raises(msgspec.DecodeError):
        decode_head(head)


@st.composite
def damaged(draw):
    """A message of which a bit is another."""
    head = bytearray(encode_head(draw(structs(Push))))
    head[draw(st.integers(0, len(head) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(head)


@given(st.one_of(st.binary(max_size=64), damaged()))
def test_garbage_is_a_message_or_refused_with_one_error(head):
    try:
        message = decode_head(head)
    except ValueError:  # msgspec raises this, or UnicodeDecodeError, which is one
        return
    assert isinstance(message, KINDS)


def test_only_messages_with_a_size_have_a_payload():
    assert payload_size(Update(0, 0, "gradient", 1.0, None, Reading(), size=12)) == 12
    assert payload_size(Beat(3, 9, 0.0)) == 0


def test_the_largest_push_of_a_slice_fits_into_a_header():
    """A thousand and twenty-four parts, four numbers each, from two hundred workers."""
    push = Push(
        turn=2**40,
        slice=2**20,
        kind="assign",
        operation="load()",
        weight=1.0,
        origins={f"frankfurt-am-main/{rank}": 2**31 for rank in range(200)},
        present=b"\xff" * 128,
        hyper=b"\xff" * 16,
        reading=Reading(),
        planes=("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
        scalars=tuple((f"number {n}", (0.1,) * 1024) for n in range(4)),
        size=2**40,
    )
    assert len(encode_head(push)) <= HEAD_LIMIT_BYTES
