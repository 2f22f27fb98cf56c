"""Residual networks as plain PyTorch modules, for lenet_torch.py and cifar_torch.py: those of `tutti-train --model
resnet20` and `resnet50`.

Shapes, operations and the distributions of initial values are the trainer's, except for the side that gets an odd
padding.
"""
import math

import torch.nn.functional as F
from torch import nn


BIAS_LIMIT = 0.07
DEVIATION_OF_CUT = 0.87962566103423978  # of a standard normal distribution truncated at two deviations


def he_normal_(weight):
    """Draws normal values truncated at two deviations, with variance 2 / fan_in."""
    deviation = math.sqrt(2 / weight[0].numel()) / DEVIATION_OF_CUT
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride, bottleneck):
        super().__init__()
        layers = [(outputs, 3, stride), (outputs, 3, 1)]
        if bottleneck:
            layers = [(outputs // 4, 1, stride), (outputs // 4, 3, 1), (outputs, 1, 1)]
        self.convs, self.norms, channels = nn.ModuleList(), nn.ModuleList(), inputs
        for units, kernel, step in layers:
            self.convs.append(nn.Conv2d(channels, units, kernel, step, kernel // 2, bias=False))
            self.norms.append(nn.BatchNorm2d(units, momentum=0.01))
            channels = units
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs, momentum=0.01))

    def forward(self, x):
        y = x
        for conv, norm in zip(self.convs[:-1], self.norms):
            y = F.relu(norm(conv(y)), inplace=True)
        y = self.norms[-1](self.convs[-1](y)) + self.shortcut(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    def __init__(self, large, blocks, outputs, inputs):
        super().__init__()
        self.large, channels = large, 64 if large else outputs[0]
        self.conv1 = nn.Conv2d(inputs, channels, 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels, momentum=0.01)
        stages = []
        for stage, (count, units) in enumerate(zip(blocks, outputs)):
            for block in range(count):
                stages.append(Block(channels, units, 2 if stage > 0 and block == 0 else 1, large))
                channels = units
        self.stages, self.fc = nn.Sequential(*stages), nn.Linear(channels, 10)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.xavier_uniform_(module.weight) if large else he_normal_(module.weight)
        nn.init.uniform_(self.fc.bias, -BIAS_LIMIT, BIAS_LIMIT)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        if self.large:
            x = F.max_pool2d(x, 3, 2, 1)
        return self.fc(self.stages(x).mean((2, 3)))


def make(name, inputs=1):
    """inputs: channels of an image"""
    if name == "resnet50":
        return ResNet(True, (3, 4, 6, 3), (256, 512, 1024, 2048), inputs)
    return ResNet(False, (3, 3, 3), (16, 32, 64), inputs)
