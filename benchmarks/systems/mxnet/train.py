"""A worker of MXNet's parameter server: the workloads' CNNs in Gluon, and synthetic gradients.

All keys are initialised, then all workers pause, and only then is anything pulled: a pull of a key that the server
does not have yet ends the server.
"""

import time
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

from benchmarks import data, training

PAUSE_S = 3.0


def main(job: training.Job) -> None:
    watch, options = training.Watch(job), job.options
    mx.random.seed(0)
    np.random.seed(0)  # Gluon's initialisers draw from it
    task = Synthetic(job) if job.cell.workload == "synthetic" else Cnn(job)
    store = mx.kv.create(options["store"])
    if "compression" in options:
        store.set_gradient_compression({"type": options["compression"], "threshold": 0.5})
    if job.place == 0:
        store.set_optimizer(task.optimizer)
    keys = list(range(len(task.weights)))
    store.init(keys, task.weights)
    time.sleep(PAUSE_S)
    store.pull(keys, task.weights)
    task.take()
    if options["store"] == "dist_async":
        told = "nobody waits: A's workers, beside the server, are far ahead."
        watch.note = f"{told} Seconds are the median worker's"
    for _ in watch.steps(task.accuracy):
        task.backward()
        for key, gradient, weight in zip(keys, task.gradients(), task.weights, strict=True):
            store.push(key, gradient, priority=-key)
            store.pull(key, weight, priority=-key)
        task.take()
        nd.waitall()
    store._barrier()  # the server ends with the first worker that leaves


class Synthetic:
    """Gradients that are at hand."""

    accuracy = None

    def __init__(self, job: training.Job) -> None:
        self.optimizer = mx.optimizer.SGD(learning_rate=1e-3)
        self.weights = [nd.zeros(size) for size in training.synthetic_sizes(job.cell.parameters)]
        given = [1e-3 * nd.random.normal(shape=weight.shape) for weight in self.weights]
        self.gradients, self.backward = lambda: given, lambda: time.sleep(1e-3 * job.cell.step_ms)

    def take(self) -> None:
        """There is no model to put the weights into."""


class Cnn:
    """GeoMX's CNN, with wider dense layers where more parameters are wanted."""

    def __init__(self, job: training.Job) -> None:
        self._job, self._net = job, cnn(job.cell.workload)
        self._images, self._labels = data.fashion_mnist("train")
        self._order = np.random.default_rng(1 + job.place)
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        self._net.initialize(mx.init.Xavier())
        self._parameters = list(self._net.collect_params().values())
        # The server adds what workers push: the mean over all samples is wanted.
        scale = 1 / (job.cell.batch * job.everyone)
        self.optimizer = mx.optimizer.Adam(learning_rate=training.RATE, rescale_grad=scale)
        # Arrays of their own: those of the net may be in a layout of oneDNN, which the store does not take.
        self.weights = [parameter.data().copy() for parameter in self._parameters]

    def backward(self) -> None:
        everyone = self._job.everyone
        drawn = self._order.integers(len(self._labels) // everyone, size=self._job.cell.batch)
        chosen = drawn * everyone + self._job.place
        with autograd.record():
            classes = self._net(nd.array(data.scaled(self._images[chosen])))
            loss = self._loss(classes, nd.array(self._labels[chosen]))
        loss.backward()

    def gradients(self) -> list[Any]:
        return [parameter.grad() for parameter in self._parameters]

    def take(self) -> None:
        """Put the weights that were pulled into the net."""
        for parameter, weight in zip(self._parameters, self.weights, strict=True):
            parameter.set_data(weight)

    def accuracy(self) -> float:
        return data.accuracy(lambda images: self._net(nd.array(images)).argmax(axis=1).asnumpy())


def cnn(name: str) -> Any:
    """All sizes are given, so that the weights are there before the first image."""
    wide, narrow = data.DENSE[name]
    net = gluon.nn.HybridSequential()
    for before, channels in ((1, 16), (16, 32)):
        net.add(gluon.nn.Conv2D(channels, kernel_size=5, in_channels=before, activation="relu"))
        net.add(gluon.nn.MaxPool2D(2))
    net.add(gluon.nn.Flatten())
    for before, units, activation in ((512, wide, "relu"), (wide, narrow, "relu"), (narrow, 10, None)):
        net.add(gluon.nn.Dense(units, in_units=before, activation=activation))
    return net
