"""A worker of MXNet's parameter server: the workloads' CNNs in Gluon, and synthetic gradients.

All keys are initialised, then all workers pause, and only then is anything pulled: a pull of a key that the server
does not have yet ends the server.
"""

from __future__ import annotations

import time
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

from benchmarks import data, training

DENSE = {"cnn-179k": (256, 128), "cnn-1m": (1024, 512), "cnn-10m": (4096, 1920)}
TEST_BATCH = 1000
PAUSE_S = 3.0


def main() -> None:
    job, watch = training.begin()
    mx.random.seed(0)
    np.random.seed(0)  # Gluon's initialisers draw from it
    task = Synthetic(job) if job.workload == "synthetic" else Cnn(job)
    store = mx.kv.create(job.options["store"])
    if job.options.get("compression"):
        store.set_gradient_compression({"type": job.options["compression"], "threshold": 0.5})
    if job.place == 0:
        store.set_optimizer(task.optimizer)
    keys = list(range(len(task.weights)))
    store.init(keys, task.weights)
    time.sleep(PAUSE_S)
    store.pull(keys, task.weights)
    task.take()
    if job.options["store"] == "dist_async":
        watch.note = (
            "nobody waits: A's workers, beside the server, are far ahead. Seconds are the median worker's"
        )
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
        self.weights = [nd.zeros(size) for size in training.synthetic_sizes(job.parameters)]
        self._given = [1e-3 * nd.random.normal(shape=weight.shape) for weight in self.weights]
        self._step_s = 1e-3 * job.step_ms

    def backward(self) -> None:
        time.sleep(self._step_s)

    def gradients(self) -> list[Any]:
        return self._given

    def take(self) -> None:
        """There is no model to put the weights into."""


class Cnn:
    """GeoMX's CNN, with wider dense layers where more parameters are wanted."""

    def __init__(self, job: training.Job) -> None:
        self._job = job
        self._images, self._labels = data.fashion_mnist("train")
        self._order = np.random.default_rng(1 + job.place)
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        self._net = cnn(job.workload)
        self._net.initialize(mx.init.Xavier())
        self._parameters = list(self._net.collect_params().values())
        # The server adds what workers push: the mean over all samples is wanted.
        self.optimizer = mx.optimizer.Adam(
            learning_rate=training.RATE, rescale_grad=1 / (job.batch * job.everyone)
        )
        # Arrays of their own: those of the net may be in a layout of oneDNN, which the store does not take.
        self.weights = [parameter.data().copy() for parameter in self._parameters]

    def backward(self) -> None:
        share = len(self._labels) // self._job.everyone
        chosen = self._order.integers(share, size=self._job.batch) * self._job.everyone + self._job.place
        with autograd.record():
            loss = self._loss(self._net(scaled(self._images[chosen])), nd.array(self._labels[chosen]))
        loss.backward()

    def gradients(self) -> list[Any]:
        return [parameter.grad() for parameter in self._parameters]

    def take(self) -> None:
        """Put the weights that were pulled into the net."""
        for parameter, weight in zip(self._parameters, self.weights, strict=True):
            parameter.set_data(weight)

    def accuracy(self) -> float:
        """The share of the 10,000 test images that the model gets right."""
        images, labels = data.fashion_mnist("test")
        right = 0
        for start in range(0, len(labels), TEST_BATCH):
            named = self._net(scaled(images[start : start + TEST_BATCH])).argmax(axis=1).asnumpy()
            right += int((named == labels[start : start + TEST_BATCH]).sum())
        return right / len(labels)


def cnn(name: str) -> Any:
    """All sizes are given, so that the weights are there before the first image."""
    wide, narrow = DENSE[name]
    net = gluon.nn.HybridSequential()
    for before, channels in ((1, 16), (16, 32)):
        net.add(gluon.nn.Conv2D(channels, kernel_size=5, in_channels=before, activation="relu"))
        net.add(gluon.nn.MaxPool2D(2))
    net.add(gluon.nn.Flatten())
    for before, units, activation in ((512, wide, "relu"), (wide, narrow, "relu"), (narrow, 10, None)):
        net.add(gluon.nn.Dense(units, in_units=before, activation=activation))
    return net


def scaled(images: Any) -> Any:
    return nd.array((images[:, None].astype(np.float32) / 255 - data.MEAN) / data.DEVIATION)


if __name__ == "__main__":
    main()
