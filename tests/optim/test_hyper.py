import msgspec
import pytest
import torch

from geomx.optim import ELEMENTWISE
from geomx.optim.hyper import Rule


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_what_is_sent_survives_the_wire(name):
    rule = Rule(name)
    group = getattr(torch.optim, name)([torch.zeros(1)]).param_groups[0]
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(rule.send(group)))
    assert rule.receive(sent) == {key: group[key] for key in rule.defaults}


def test_only_what_the_rule_computes_with_is_sent():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1, foreach=True)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=10, cycle_momentum=False)
    sent = Rule("SGD").send(optimizer.param_groups[0])
    assert sent.keys() == {"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"}


def test_a_learning_rate_that_is_a_tensor_is_sent_as_a_number():
    optimizer = torch.optim.Adam([torch.zeros(1)], lr=torch.tensor(0.5))
    sent = Rule("Adam").send(optimizer.param_groups[0])
    assert sent["lr"] == 0.5
    assert sent["betas"] == [0.9, 0.999]
