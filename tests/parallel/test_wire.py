"""What is read is what was written."""

import dataclasses
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfacet import state
from fedfacet.clients.divided_training import HalfTrained
from fedfacet.parallel import wire
from fedfacet.types import Broadcast, ClientTask, ClientUpdate

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)
SHAPES = ((), (0,), (3, 0, 2), (1,), (5,), (2, 3), (2, 3, 3, 1))


def draw(dtype, shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-100, 100, shape, generator=generator).to(dtype)


BUNDLES = st.lists(
    st.dictionaries(st.text(max_size=5), st.builds(draw, st.sampled_from(DTYPES), st.sampled_from(SHAPES)), max_size=5),
    max_size=4,
)


def sent(bundles):
    """Return bundles as the other side reads them, out of a run of bytes that held something else before."""
    manifest = pickle.loads(pickle.dumps(wire.manifest_of(bundles)))
    target = torch.full((manifest.num_bytes,), 0xAB, dtype=torch.uint8)
    wire.write(bundles, manifest, target)
    return wire.read(manifest, target)


def assert_same(ours, theirs):
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert theirs[name].dtype == tensor.dtype
        assert theirs[name].shape == tensor.shape
        assert theirs[name].is_contiguous()
        assert torch.equal(theirs[name], tensor)


@given(BUNDLES)
def test_bundles_come_back_as_they_were(bundles):
    read = sent(bundles)
    assert len(read) == len(bundles)
    for ours, theirs in zip(bundles, read, strict=True):
        assert_same(ours, theirs)


@given(BUNDLES)
def test_tensors_begin_where_their_dtype_allows_and_do_not_overlap(bundles):
    manifest = wire.manifest_of(bundles)
    end = 0
    for entry, tensor in zip(
        (entry for entries in manifest.bundles for entry in entries),
        (tensor for bundle in bundles for tensor in bundle.values()),
        strict=True,
    ):
        assert entry.offset % 16 == 0
        assert entry.offset >= end
        end = entry.offset + tensor.nbytes
    assert end <= manifest.num_bytes < end + 16


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12).view(3, 4).T,
        torch.arange(12)[::2],
        torch.ones(1).expand(3, 4),
        torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        torch.nn.Parameter(torch.arange(3.0)),
    ],
    ids=["transposed", "every other", "expanded", "channels last", "parameter"],
)
def test_tensors_may_lie_in_memory_as_they_like(tensor):
    with torch.no_grad():
        (read,) = sent([{"before": torch.ones(3, dtype=torch.bool), "tensor": tensor, "after": torch.ones(1)}])
    assert torch.equal(read["tensor"], tensor)
    assert read["before"].all()
    assert read["after"] == 1


def test_more_room_than_needed_is_no_harm_and_views_are_what_is_read():
    bundles = [{"a": torch.arange(3)}, {"b": torch.ones(2)}]
    manifest = wire.manifest_of(bundles)
    target = torch.full((manifest.num_bytes + 100,), 0xAB, dtype=torch.uint8)
    wire.write(bundles, manifest, target)
    read = wire.read(manifest, target)
    assert (target[manifest.num_bytes :] == 0xAB).all()
    target.zero_()
    assert not any(tensor.any() for bundle in read for tensor in bundle.values())


def crossed(pack, unpack, thing):
    """Return a thing as it comes out of another process."""
    numbers, bundles = pack(thing)
    assert "tensor" not in str(numbers)
    return unpack(pickle.loads(pickle.dumps(numbers)), sent(bundles))


def test_an_update_comes_back_as_it_was():
    update = ClientUpdate(
        client_id=3,
        delta={"weight": draw(torch.float32, (2, 3)), "scale": draw(torch.float64, ()), "none": torch.empty(0)},
        buffers={"mean": draw(torch.bfloat16, (5,))},
        num_samples=10,
        num_steps=5,
        step_weight=7.5,
        metrics={"loss_sum": 0.1, "num_seen": 10},
        extras={"counts": draw(torch.int64, (2, 2))},
        memory={"seen": draw(torch.bool, (7,)), "weight": draw(torch.float32, (1,))},
    )
    theirs = crossed(wire.pack_update, wire.unpack_update, update)
    for field in dataclasses.fields(update):
        ours, other = getattr(update, field.name), getattr(theirs, field.name)
        if field.name in ("delta", "buffers", "extras", "memory"):
            assert_same(ours, other)
        else:
            assert ours == other, field.name


def test_a_half_trained_client_comes_back_as_it_was():
    half = HalfTrained(
        num_steps=3,
        weights={"weight": draw(torch.float32, (2, 3)), "count": torch.tensor(7)},
        optimizer={
            0: {"step": torch.tensor(3.0), "exp_avg": draw(torch.float32, (2, 3)), "lr": 0.1},
            12: {"momentum_buffer": None, "a|b": draw(torch.float64, (2,))},
            2: {},
        },
        generators=[torch.get_rng_state(), torch.arange(16).byte()],
        loss_sum=0.3,
        num_seen=24,
    )
    theirs = crossed(wire.pack_half, wire.unpack_half, half)
    assert (theirs.num_steps, theirs.loss_sum, theirs.num_seen) == (3, 0.3, 24)
    assert_same(half.weights, theirs.weights)
    assert list(theirs.optimizer) == [0, 12]  # a parameter without a state has nothing to be restored
    assert (theirs.optimizer[0].pop("lr"), theirs.optimizer[12].pop("momentum_buffer", "lost")) == (0.1, None)
    assert_same({"a|b": half.optimizer[12]["a|b"]}, theirs.optimizer[12])
    assert_same({name: half.optimizer[0][name] for name in ("step", "exp_avg")}, theirs.optimizer[0])
    assert all(map(torch.equal, half.generators, theirs.generators))
    assert len(theirs.generators) == 2


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_client_goes_on_from_what_comes_back(tiny_clients, momentum):
    clients, elsewhere = tiny_clients(momentum=momentum), tiny_clients(momentum=momentum, seed=1)
    task = ClientTask(1, 3, 5, Broadcast(state.clone(clients.program.tensors)))
    half = crossed(wire.pack_half, wire.unpack_half, clients.train_part(task, None, 1))
    update = crossed(wire.pack_update, wire.unpack_update, elsewhere.train_part(task, half, None))
    expected = clients.train(task)
    assert state.digest(update.delta) == state.digest(expected.delta)
    assert update.metrics == expected.metrics
