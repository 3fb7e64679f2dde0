"""Whatever the cuts, the root computes what torch.optim computes on whole tensors, bit for bit."""

import itertools
import math

import pytest
import torch
from exploring import examples
from hypothesis import given
from hypothesis import strategies as st

from geomx.errors import CheckpointError, ProtocolError, UnknownName, Unsupported
from geomx.layout import Layout, Part, Slice, Tensor
from geomx.optim import ELEMENTWISE, optimizers
from geomx.optim.contract import SliceState
from geomx.optim.hyper import Rule
from geomx.optim.torch_optim import TorchOptimizer
from geomx.wire import presence

rates = st.sampled_from([1e-3, 0.03, 0.1])
decays = st.sampled_from([0, 0.01, 0.3])
flags = st.booleans()
betas = st.sampled_from([(0.9, 0.999), (0.5, 0.9)])
common = {"lr": rates, "weight_decay": decays, "maximize": flags}
HYPER = {
    # A momentum buffer that is not there yet is not a zero one: with dampening the first step differs.
    "SGD": common | {"momentum": st.sampled_from([0, 0.9]), "dampening": st.sampled_from([0.0, 0.4])},
    "SGD, nesterov": common | {"momentum": st.sampled_from([0.5, 0.9]), "nesterov": st.just(True)},
    "Adam": common | {"betas": betas, "amsgrad": flags, "eps": st.sampled_from([1e-8, 1e-3])},
    "AdamW": common | {"betas": betas, "amsgrad": flags},
    "Adagrad": common | {"lr_decay": decays, "initial_accumulator_value": decays},
    "RMSprop": common | {"momentum": st.sampled_from([0, 0.9]), "centered": flags, "alpha": st.just(0.9)},
    "Adadelta": common | {"rho": st.sampled_from([0.5, 0.9])},
    "Adamax": common | {"betas": betas},
    "NAdam": common | {"betas": betas, "momentum_decay": decays, "decoupled_weight_decay": flags},
    "RAdam": common | {"betas": betas, "decoupled_weight_decay": flags},
    "ASGD": common | {"t0": st.sampled_from([1.0, 3.0]), "lambd": decays},
    "Rprop": {"lr": rates, "maximize": flags, "etas": st.just((0.4, 1.3))},
}
DTYPES = {"float32": torch.int32, "float64": torch.int64}  # and the integers that show their bits
HALVES = {"bfloat16": torch.int16, "float16": torch.int16}


@st.composite
def cut_models(draw):
    """Sizes of tensors, and slices that cut them anywhere."""
    sizes = draw(st.lists(st.integers(1, 90), min_size=1, max_size=3))
    dtype = draw(st.sampled_from(list(DTYPES)))
    cuts = []
    for number, size in enumerate(sizes):
        inner = draw(st.sets(st.integers(1, size), max_size=3)) - {size}
        ends = [0, *sorted(inner), size]
        cuts += [(number, start, stop) for start, stop in itertools.pairwise(ends)]
    slices = []
    while cuts:
        taken = draw(st.integers(1, min(3, len(cuts))))
        parts, offset = [], 0
        for number, start, stop in cuts[:taken]:
            parts.append(Part(number, start, stop, offset))
            offset += stop - start
        slices.append(Slice(len(slices), dtype, 0, "weight", True, tuple(parts)))
        cuts = cuts[taken:]
    return sizes, dtype, slices


def gather(slice_, tensors):
    return torch.cat([tensors[part.tensor][part.start : part.stop] for part in slice_.parts])


def assert_same_bits(flat, slice_, wholes):
    expected = gather(slice_, [whole.detach() for whole in wholes])
    bits = (DTYPES | HALVES)[slice_.dtype]
    assert torch.equal(flat.view(bits), expected.view(bits))


def check_against_torch(name, hyper, model, data):
    """Five steps of both, with tensors that have no gradient, a learning rate that changes, and a restart."""
    sizes, dtype, slices = model
    make = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    wholes = [torch.randn(size, generator=make, dtype=getattr(torch, dtype)) for size in sizes]
    flats = [gather(slice_, wholes) for slice_ in slices]
    reference = getattr(torch.optim, name)(wholes, foreach=False, **hyper)
    root = TorchOptimizer(name)
    for slice_, flat in zip(slices, flats, strict=True):
        root.adopt(slice_, flat)
    restart = data.draw(st.integers(0, 5))
    for step in range(5):
        if step == restart:
            root = moved(root, name, slices, flats)
        has_gradient = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
        gradients = [torch.randn(whole.shape, generator=make, dtype=whole.dtype) for whole in wholes]
        reference.param_groups[0]["lr"] = hyper["lr"] / (1 + step)
        sent = Rule(name).send(reference.param_groups[0])
        for whole, gradient, present in zip(wholes, gradients, has_gradient, strict=True):
            whole.grad = gradient.clone() if present else None
        reference.step()
        for slice_ in slices:
            present = presence.pack([has_gradient[part.tensor] for part in slice_.parts])
            root.apply(slice_.index, gather(slice_, gradients), present, sent)
    for slice_, flat in zip(slices, flats, strict=True):
        assert_same_bits(flat, slice_, wholes)


def moved(root, name, slices, flats):
    """Another optimizer, with the state of the first."""
    other = TorchOptimizer(name)
    for slice_, flat in zip(slices, flats, strict=True):
        other.adopt(slice_, flat)
        other.restore(slice_.index, root.export(slice_.index))
    return other


@pytest.mark.parametrize("kind", [*ELEMENTWISE, "SGD, nesterov"])
@examples(12)
@given(data=st.data(), model=cut_models())
def test_slices_end_with_the_bits_of_whole_tensors(kind, data, model):
    hyper = data.draw(st.fixed_dictionaries(HYPER[kind]))
    check_against_torch(kind.partition(",")[0], hyper, model, data)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_half_precision_has_the_same_bits_where_cuts_are_aligned(name, dtype):
    layout = Layout((Tensor("w", (300,), dtype),), pack_below=1, slice_elements=64)
    make = torch.Generator().manual_seed(0)
    whole = torch.randn(300, generator=make).to(getattr(torch, dtype))
    flats = [gather(slice_, [whole]) for slice_ in layout.slices]
    hyper = {"lr": 0.01} | ({"momentum": 0.9} if name in ("SGD", "RMSprop") else {})
    reference, root = getattr(torch.optim, name)([whole], foreach=False, **hyper), TorchOptimizer(name)
    for slice_, flat in zip(layout.slices, flats, strict=True):
        root.adopt(slice_, flat)
    for _ in range(5):
        whole.grad = torch.randn(300, generator=make).to(whole.dtype)
        for slice_ in layout.slices:
            root.apply(slice_.index, gather(slice_, [whole.grad]), None, hyper)
        reference.step()
    for slice_, flat in zip(layout.slices, flats, strict=True):
        assert_same_bits(flat, slice_, [whole])


def small_slice():
    layout = Layout((Tensor("a", (3,), "float32"), Tensor("b", (2,), "float32")))
    return layout.slices[0]


def started(name="Adam", **hyper):
    root = TorchOptimizer(name)
    weights = torch.ones(5)
    root.adopt(small_slice(), weights)
    root.apply(0, torch.ones(5), presence.pack([True, False]), {"lr": 0.1, **hyper})
    return root, weights


def test_a_part_that_is_not_present_is_left_alone():
    root, weights = started()
    assert weights.tolist() == pytest.approx([0.9, 0.9, 0.9, 1.0, 1.0])
    state = root.export(0)
    assert state.planes["exp_avg"].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.0, 0.0])
    assert state.scalars["step"][0] == 1.0
    assert math.isnan(state.scalars["step"][1])


def test_exported_and_restored_state_are_copies():
    root, _ = started()
    before = root.export(0)
    root.apply(0, torch.ones(5), None, {"lr": 0.1})
    assert before.planes["exp_avg"].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.0, 0.0])
    root.restore(0, before)
    root.apply(0, torch.ones(5), None, {"lr": 0.1})
    assert before.planes["exp_avg"].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.0, 0.0])
    before = root.export(0)
    before.planes["exp_avg"].fill_(7.0)
    assert root.export(0).planes["exp_avg"].max() < 1.0


def test_restoring_no_state_and_adopting_again_start_state_anew():
    for begin in (
        lambda root: root.restore(0, SliceState()),
        lambda root: root.adopt(small_slice(), torch.zeros(5)),
    ):
        root, _ = started()
        begin(root)
        assert root.export(0) == SliceState()


def test_hyperparameters_that_are_not_sent_have_their_defaults():
    root, weights = started(weight_decay=0.5)
    other, expected = started()
    for each in (root, other):
        each.restore(0, SliceState())
    weights.fill_(1.0), expected.fill_(1.0)
    for each in (root, other):
        each.apply(0, torch.ones(5), None, {"lr": 0.1})
    assert torch.equal(weights, expected)


def test_a_simulation_of_shapes_steps_without_arithmetic():
    root = TorchOptimizer("ASGD")
    root.adopt(small_slice(), torch.empty(5, device="meta"))
    root.apply(0, torch.empty(5, device="meta"), None, {"lr": 0.1})
    assert root.export(0) == SliceState()
    with pytest.raises(ProtocolError, match="expected 5 elements"):
        root.apply(0, torch.empty(4, device="meta"), None, {"lr": 0.1})


def test_a_gradient_of_another_size_is_refused():
    root, _ = started()
    with pytest.raises(ProtocolError, match=r"shape \(6,\); expected 5 elements"):
        root.apply(0, torch.ones(6), None, {"lr": 0.1})


def test_state_of_another_optimizer_is_refused():
    root, _ = started("RMSprop")
    other, _ = started("Adam")
    other.restore(0, root.export(0))
    with pytest.raises(CheckpointError, match="'exp_avg'"):
        other.apply(0, torch.ones(5), None, {"lr": 0.1})


@pytest.mark.parametrize(
    ("hyper", "error", "message"),
    [
        ({"learning_rate": 0.1}, ProtocolError, "no hyper-parameter 'learning_rate'"),
        ({"lr": "0.1"}, ProtocolError, "lr is '0.1'; expected a finite number"),
        ({"lr": math.nan}, ProtocolError, "expected a finite number"),
        ({"lr": True}, ProtocolError, "expected a finite number"),
        ({"lr": None}, ProtocolError, "expected a finite number"),
        ({"lr": -1.0}, ProtocolError, "refuses its hyper-parameters: Invalid learning rate"),
        ({"betas": [0.9]}, ProtocolError, "expected 2 finite numbers"),
        ({"betas": [0.9, "x"]}, ProtocolError, "expected 2 finite numbers"),
        ({"betas": 0.9}, ProtocolError, "expected 2 finite numbers"),
        ({"amsgrad": 1}, ProtocolError, "expected true or false"),
        ({"capturable": True}, Unsupported, "capturable=True"),
        ({"differentiable": True}, Unsupported, "optimizer.place"),
    ],
)
def test_hyperparameters_that_cannot_be_are_refused(hyper, error, message):
    root = TorchOptimizer("Adam")
    root.adopt(small_slice(), torch.ones(5))
    with pytest.raises(error, match=message):
        root.apply(0, torch.ones(5), None, hyper)


def test_the_kernel_variant_is_the_roots_own():
    root, weights = started()
    other, expected = started(foreach=True, fused=True, capturable=False)
    assert torch.equal(weights, expected)
    assert root.export(0).scalars["step"][0] == other.export(0).scalars["step"][0] == 1.0


@pytest.mark.parametrize("name", ["Muon", "LBFGS", "Adafactor", "adam"])
def test_rules_that_are_not_elementwise_are_refused(name):
    with pytest.raises(UnknownName, match="elementwise"):
        TorchOptimizer(name)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_rule_is_registered_under_the_name_that_torch_gives_it(name):
    assert optimizers.find(name)(name)._rule.kind is getattr(torch.optim, name)
