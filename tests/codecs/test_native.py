"""Compiled kernels and torch operations give the same bits."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from codec_cases import SIZES, SPECS, made, slice_of
from exploring import examples
from hypothesis import given
from hypothesis import strategies as st

from geomx.codecs.contract import Codec
from geomx.codecs.pack import library, native
from geomx.errors import ProtocolError

WITH_MOMENTUM = ["bisparse momentum=0.9", "bisparse ratio=0.1 momentum=0.5 clip=0.1"]
needs_kernels = pytest.mark.skipif(not native.available(), reason="built without a C compiler")


def both(codec: str, rounds: list[torch.Tensor]) -> None:
    """Encode the same in both ways; payloads, residuals and what receivers read must be the same bits."""
    slice_ = slice_of(rounds[0].numel())
    ours, plain = made(codec), made(codec)
    for turn, values in enumerate(rounds):
        payload = ours.encode(slice_, turn, values, 1.0)
        with native.switched_off():
            expected = plain.encode(slice_, turn, values, 1.0)
            read = plain.decode(slice_, expected)
        assert torch.equal(payload, expected)
        kept, expected_to_be_kept = ours.state(slice_), plain.state(slice_)
        assert kept.keys() == expected_to_be_kept.keys()
        for name, held in kept.items():
            same_bits(held, expected_to_be_kept[name])
        same_bits(ours.decode(slice_, payload), read)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> None:
    assert torch.equal(a.view(torch.int32), b.view(torch.int32))


def numbers(elements: int, kind: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(elements, generator=generator)
    if kind == "normal":
        return 1e-2 * x
    if kind == "wide":  # every exponent that there is, subnormal numbers as well
        return x.sign() * torch.exp2(torch.randint(-149, 120, (elements,), generator=generator).float())
    if kind == "tiny":
        return x * 1e-43
    if kind == "huge":
        return x.clamp(-1, 1) * 3.38e38
    if kind == "equal":
        return x.sign() * 0.25
    return torch.where(torch.rand(elements, generator=generator) < 0.999, 0.0, x)  # few


@needs_kernels
@pytest.mark.parametrize("spec", [*SPECS, *WITH_MOMENTUM])
def test_the_same_bits_round_after_round_and_of_strange_numbers(spec: str) -> None:
    for elements in SIZES:
        both(spec, [numbers(elements, "normal", seed) for seed in range(3)])
    for kind, elements in product(("wide", "tiny", "huge", "equal", "few"), (1, 257, 5003)):
        both(spec, [numbers(elements, kind)])


@needs_kernels
@examples(200)
@given(st.sampled_from(SPECS), st.integers(1, 300), st.data())
def test_the_same_payloads_are_refused(spec: str, elements: int, data: st.DataObject) -> None:
    codec, slice_ = made(spec), slice_of(elements)
    payload = codec.encode(slice_, 1, numbers(elements, "normal", 1), 1.0)
    place = data.draw(st.integers(0, payload.numel() - 1))
    payload[place] ^= data.draw(st.integers(1, 255))
    read = outcome(codec, elements, payload)
    with native.switched_off():
        expected = outcome(codec, elements, payload)
    assert (read is None) == (expected is None)
    if read is not None and expected is not None:
        same_bits(read, expected)


def outcome(codec: Codec, elements: int, payload: torch.Tensor) -> torch.Tensor | None:
    try:
        return codec.decode(slice_of(elements), payload)
    except ProtocolError:
        return None


@needs_kernels
def test_a_library_of_another_system_is_not_used(tmp_path) -> None:
    for content in (b"no library", None):
        path = tmp_path / "kernels.so"
        if content is not None:
            path.write_bytes(content)
        assert library.load(path) is None
        path.unlink(missing_ok=True)


@needs_kernels
def test_a_library_of_another_source_is_not_used(tmp_path) -> None:
    """It would be called with other arguments than it expects."""
    path = tmp_path / "kernels.so"
    path.write_bytes(library.LIBRARY.read_bytes())
    made = library.load(path)
    assert made is not None  # an installed package may come without the sources
    sources, own = path.with_suffix(""), made.source()
    sources.mkdir()
    digests = []
    for number in range(100):
        (sources / "values.c").write_bytes(b"/* %d */" % number)
        digests.append(library.digest_of(sources))
        with pytest.warns(UserWarning, match="install geomx again"):
            assert library.load(path) is None
    assert min(digests) < own < max(digests)
