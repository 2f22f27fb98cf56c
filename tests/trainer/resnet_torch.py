#!/usr/bin/env python3
"""Residual networks of the trainer against PyTorch's layers in float64, with the same weights.

    resnet_torch.py RESNET_PROBE [MODEL...]

For each model one batch: logits while training and while testing, the loss, moving values, and the gradient of
every parameter. Two arrays agree if their difference is at most 1e-4 of the reference, both as Euclidean norms.

Mathematically, an activation within a rounding of 0 may fall to the other side of a ReLU, and then gradients lack a
term, which is large if a layer has few rows, as the last stages have on small images. Most seeds have no such
activation if beta is far from 0 relative to gamma, so TRIES seeds are tried: one must agree. A wrong computation
agrees for none.
"""
import json
import struct
import subprocess
import sys
import tempfile

import numpy
import torch
import torch.nn.functional as functional

TOLERANCE = 1e-4
TRIES = 8
#       model: bottlenecks, large images, blocks, outputs, parameters, moving values, side, batch
MODELS = {
    "resnet20": (False, False, (3, 3, 3), (16, 32, 64), 272474, 1568, 32, 8),
    "resnet18": (False, True, (2, 2, 2, 2), (64, 128, 256, 512), 11181642, 9600, 64, 4),
    "resnet50": (True, True, (3, 4, 6, 3), (256, 512, 1024, 2048), 23528522, 53120, 64, 4),
}


def write(path, tensors):
    header, at = {}, 0
    for name, tensor in tensors.items():
        end = at + tensor.size * 4
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(numpy.ascontiguousarray(tensor, dtype="<f4").tobytes())


def read(path):
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack_from("<Q", content)
    tensors = {}
    for name, entry in json.loads(content[8 : 8 + length]).items():
        if name != "__metadata__":
            first, end = entry["data_offsets"]
            data = numpy.frombuffer(content[8 + length + first : 8 + length + end], dtype="<f4")
            tensors[name] = data.reshape(entry["shape"]).astype(numpy.float64)
    return tensors


class Net:
    """The network by PyTorch's functions; a tensor is made when it is first used."""

    def __init__(self, name, seed):
        self.bottlenecks, self.large, self.blocks, self.outputs = MODELS[name][:4]
        self.random = numpy.random.default_rng(seed)
        self.tensors, self.states, self.training = {}, {}, True

    def draw(self, name, shape, scale, middle=0.0):
        if name not in self.tensors:
            values = (middle + scale * self.random.standard_normal(shape)).astype(numpy.float32)
            self.tensors[name] = torch.tensor(values.astype(numpy.float64), requires_grad=True)
        return self.tensors[name]

    def conv(self, x, name, outputs, kernel, stride):
        inputs, side = x.shape[1], x.shape[2]
        weight = self.draw(name + ".weight", (kernel, kernel, inputs, outputs), (2 / (kernel * kernel * inputs)) ** 0.5)
        pad = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        x = functional.pad(x, (pad // 2, pad - pad // 2, pad // 2, pad - pad // 2))
        return functional.conv2d(x, weight.permute(3, 2, 0, 1), stride=stride)

    def norm(self, x, name, before_add=False):
        channels = x.shape[1]
        if self.large:
            signs = 0.5 if before_add else self.random.choice([-1.0, 1.0], channels)
            gamma = self.draw(name + ".gamma", channels, 0.1, 1.0)
            beta = self.draw(name + ".beta", channels, 0.1, 2.0 * signs)
        else:
            gamma, beta = self.draw(name + ".gamma", channels, 0.2, 1.0), self.draw(name + ".beta", channels, 0.2)
        if name + ".moving_mean" not in self.states:
            mean, variance = self.random.standard_normal(channels), self.random.uniform(0.5, 2, channels)
            self.states[name + ".moving_mean"] = torch.tensor(mean.astype(numpy.float32).astype(numpy.float64))
            self.states[name + ".moving_variance"] = torch.tensor(variance.astype(numpy.float32).astype(numpy.float64))
        return functional.batch_norm(x, self.states[name + ".moving_mean"], self.states[name + ".moving_variance"],
                                     gamma, beta, self.training, momentum=0.01, eps=1e-5)

    def block(self, x, name, outputs, stride):
        layers = [(outputs, 3, stride), (outputs, 3, 1)]
        if self.bottlenecks:
            layers = [(outputs // 4, 1, stride), (outputs // 4, 3, 1), (outputs, 1, 1)]
        y = x
        for i, (channels, kernel, step) in enumerate(layers, 1):
            y = self.norm(self.conv(y, f"{name}.conv{i}", channels, kernel, step), f"{name}.bn{i}", i == len(layers))
            if i < len(layers):
                y = y.relu()
        if stride != 1 or x.shape[1] != outputs:
            x = self.norm(self.conv(x, f"{name}.downsample.0", outputs, 1, stride), f"{name}.downsample.1", True)
        return (y + x).relu()

    def __call__(self, x):
        first = 64 if self.large else self.outputs[0]
        x = self.norm(self.conv(x, "conv1", first, 7 if self.large else 3, 2 if self.large else 1), "bn1").relu()
        if self.large:
            pad = max((-(-x.shape[2] // 2) - 1) * 2 + 3 - x.shape[2], 0)
            x = functional.pad(x, (pad // 2, pad - pad // 2) * 2, value=-float("inf"))
            x = functional.max_pool2d(x, 3, 2)
        for stage, (blocks, outputs) in enumerate(zip(self.blocks, self.outputs), 1):
            for block in range(blocks):
                x = self.block(x, f"layer{stage}.{block}", outputs, 2 if stage > 1 and block == 0 else 1)
        x = x.mean((2, 3))
        weight = self.draw("fc.weight", (x.shape[1], 10), x.shape[1] ** -0.5)
        return x @ weight + self.draw("fc.bias", 10, 0.1)


def compare(probe, name, folder, seed):
    """The largest relative difference, and the name of its array."""
    parameters, moving, side, batch = MODELS[name][4:]
    random = numpy.random.default_rng(seed + 1000)
    images = random.standard_normal((batch, side, side, 3)).astype(numpy.float32)
    labels = random.integers(0, 10, batch)
    net = Net(name, seed)
    x = torch.tensor(images.astype(numpy.float64)).permute(0, 3, 1, 2)
    net.training = False
    with torch.no_grad():
        net(x)  # makes the tensors
    net.training = True
    given = {key: value.detach().numpy() for key, value in {**net.tensors, **net.states}.items()}
    given.update(input=images, labels=labels.astype(numpy.float32))
    write(folder + "/in", given)

    logits = net(x)
    loss = functional.cross_entropy(logits, torch.tensor(labels))
    loss.backward()
    net.training = False
    expected = {key: value.grad.numpy() for key, value in net.tensors.items()}
    expected.update({key: value.numpy() for key, value in net.states.items()})
    expected.update(logits=logits.detach().numpy(), test_logits=net(x).detach().numpy(), loss=loss.detach().numpy().reshape(1))
    found_parameters = sum(value.numel() for value in net.tensors.values())
    found_moving = sum(value.numel() for value in net.states.values())
    if (found_parameters, found_moving) != (parameters, moving):
        sys.exit(f"{name}: {found_parameters} parameters and {found_moving} moving values, expected {parameters} and {moving}")

    subprocess.run([probe, name, folder + "/in", folder + "/out"], check=True)
    found = read(folder + "/out")
    if set(found) != set(expected):
        sys.exit(f"{name}: tensors differ: {sorted(set(found) ^ set(expected))}")
    worst = (0.0, "")
    for key, value in expected.items():
        if found[key].shape != value.shape:
            sys.exit(f"{name}: {key} is {found[key].shape}, expected {value.shape}")
        error = numpy.linalg.norm(found[key] - value) / max(numpy.linalg.norm(value), 1e-30)
        worst = max(worst, (float(error if error == error else numpy.inf), key))
    return worst


def main():
    probe, names = sys.argv[1], sys.argv[2:] or list(MODELS)
    torch.set_num_threads(1)
    failed = False
    for name in names:
        for seed in range(TRIES):
            with tempfile.TemporaryDirectory() as folder:
                worst, key = compare(probe, name, folder, seed)
            print(f"{name}, seed {seed}: within {worst:.1e} of PyTorch in float64 ({key}), allowed {TOLERANCE:g}")
            if worst <= TOLERANCE:
                break
        else:
            failed = True
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
