import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedfacet import rng
from fedfacet.models.resnet8 import ResNet8


@pytest.fixture
def make():
    def build(*arguments, **settings):
        with rng.forked(0, "weights"):
            return ResNet8(*arguments, **settings)

    return build


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 5, 9), (1, 4, 4), (3, 1, 1)])
def test_shapes(make, shape):
    model = make(5, shape, width=4).eval()
    x = draw(2, *shape)
    assert model.features(x).shape == (2, 16)
    assert model(x).shape == (2, 5)
    assert torch.equal(model(x), model.head(model.features(x)))


def test_it_has_eight_weighted_layers_beside_its_short_cuts(make):
    model = make(2, (3, 32, 32))
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    short_cuts = [name for name in layers if "downsample" in name]
    assert len(layers) - len(short_cuts) == 8
    assert len(short_cuts) == 2


def test_its_size(make):
    """Convolutions, two numbers per normalised channel, the head."""
    convolutions = 3 * 16 * 9 + 2 * 16 * 16 * 9 + 16 * 32 * 9 + 32 * 32 * 9 + 32 * 64 * 9 + 64 * 64 * 9 + 16 * 32 + 32 * 64
    normalised = 3 * 16 + 3 * 32 + 3 * 64
    model = make(2, (3, 32, 32))
    assert sum(parameter.numel() for parameter in model.parameters()) == convolutions + 2 * normalised + 64 * 2 + 2 == 77522


def test_its_stages_have_16_32_and_64_channels_and_half_the_sides(make):
    model = make(2, (1, 28, 28)).eval()
    shapes = []
    for block in list(model.backbone)[3:]:
        block.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape[1:])))
    model(draw(1, 1, 28, 28))
    assert shapes == [(16, 28, 28), (32, 14, 14), (64, 7, 7)]


def test_training_moves_its_running_statistics(make):
    model = make(2, (1, 8, 8)).train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(draw(4, 1, 8, 8))
    assert all(not torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_an_impossible_width_is_refused(make):
    with pytest.raises(ValueError, match=r"Expected `model\.width` to be 1 or larger, but got 0"):
        make(2, (3, 8, 8), width=0)


class StridedConvolutions(TorchDispatchMode):
    """Notes of how many channels torch's own convolutions of one pixel skip every second one."""

    def __init__(self):
        super().__init__()
        self.channels = set()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if function is torch.ops.aten.convolution.default and arguments[1].shape[2:] == (1, 1) and arguments[3] == [2, 2]:
            self.channels.add(arguments[1].shape[1])
        return function(*arguments, **(named or {}))


def test_short_cuts_of_few_channels_are_strided_convolutions_but_not_torchs():
    """Torch's own corrupts the heap there."""
    with rng.forked(0, "weights"):
        narrow = ResNet8(2, (3, 8, 8), width=2)
    for short_cut in (narrow.backbone[4].downsample[0], narrow.backbone[5].downsample[0]):
        plain = torch.nn.Conv2d(short_cut.in_channels, short_cut.out_channels, 1, stride=2, bias=False)
        plain.load_state_dict(short_cut.state_dict())
        x = torch.from_numpy(rng.stream(0, "images").random((3, short_cut.in_channels, 7, 8), dtype=np.float32))
        with torch.no_grad():
            torch.testing.assert_close(short_cut(x), plain(x))
    for width, expected in ((2, set()), (4, {8}), (16, {16, 32})):
        with StridedConvolutions() as strided:
            ResNet8(2, (3, 8, 8), width=width)(torch.ones(2, 3, 8, 8))
        assert strided.channels == expected


@pytest.mark.slow
def test_short_cuts_of_few_channels_leave_the_heap_whole(checkout):
    """By glibc's checks, in a process of its own."""
    code = """
import torch
from fedfacet.models.resnet8 import ResNet8
model = ResNet8(2, (3, 28, 28), width=2).to(memory_format=torch.channels_last)
for _ in range(20):
    model(torch.rand(28, 3, 28, 28).to(memory_format=torch.channels_last)).sum().backward()
"""
    checks = {"MALLOC_CHECK_": "3", "LD_PRELOAD": "libc_malloc_debug.so.0"}  # the second where glibc is 2.34 or newer
    environment = {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1", **checks}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
