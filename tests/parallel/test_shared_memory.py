"""What two processes see of one another's memory; within a process whoever unpickles stands for the other one."""

import gc
import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfacet.parallel.shared_memory import SharedBytes, dumps
from fedfacet.types import Partition

LARGE = 1 << 16  # bytes, from which on arrays are shared


@pytest.fixture(params=["memfd", "file"])
def kind(request, monkeypatch, tmp_path):
    """Both kinds of memory: an anonymous file, and a temporary one where the system has none."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if request.param == "file":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("no anonymous files here")
    return request.param


def sent(obj):
    """Return an object as another process gets it."""
    data, held = dumps(obj)
    theirs = pickle.loads(data)
    del held
    return theirs


TENSORS = {
    "float32": torch.linspace(-1, 1, 6 * LARGE).view(2, 3, -1),
    "channels last": torch.arange(3 * LARGE).byte().view(-1, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    "bool": torch.arange(LARGE) % 3 == 0,
    "bfloat16": torch.linspace(0, 3, LARGE).bfloat16(),
    "int64": torch.arange(LARGE) << 40,
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_a_tensor_moves_into_shared_memory_as_it_is(tensor, kind):
    moving = tensor.clone()
    place, stride = moving.data_ptr(), moving.stride()
    data, held = dumps({"images": moving})
    assert moving.data_ptr() == held[0].tensor.data_ptr() != place, "one copy of it, where the others see it"
    theirs = pickle.loads(data)["images"]
    for there in (moving, theirs):
        assert torch.equal(there, tensor)
        assert there.dtype == tensor.dtype
        assert there.shape == tensor.shape
        assert there.stride() == stride == tensor.stride()
    moving.zero_()
    assert not theirs.any(), "they see what is written here"
    theirs.fill_(1)
    assert moving.all()


@pytest.mark.parametrize("dtype", ["<i8", ">f4", "?", "<u2"])
def test_a_large_array_is_copied_there_once(dtype, kind):
    array = np.arange(LARGE).astype(dtype).reshape(2, -1)
    data, held = dumps(array)
    assert len(held) == 1
    assert len(data) < 1000
    ours, theirs = pickle.loads(data), pickle.loads(data)
    assert np.array_equal(ours, array)
    assert (ours.dtype, ours.shape) == (array.dtype, array.shape)
    expected = array.copy()
    ours[1] = 1
    assert np.array_equal(theirs, ours)
    assert np.array_equal(array, expected)


def test_an_array_in_columns_keeps_its_values(kind):
    array = np.asfortranarray(np.arange(LARGE).reshape(4, -1))
    assert np.array_equal(sent(array), array)


@pytest.mark.parametrize(
    "array",
    [np.arange(LARGE // 8 - 1), np.array(["name"] * LARGE), np.array([{}] * LARGE), np.zeros((LARGE, 0))],
    ids=["small", "text", "objects", "empty"],
)
def test_what_is_small_or_no_number_travels_in_the_pickle(array):
    data, held = dumps(array)
    assert held == []
    assert np.array_equal(pickle.loads(data), array)


TRAVELLERS = {
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(2.5),
    "small": torch.arange(3),
    "transposed": torch.arange(LARGE).view(4, -1).T,
    "expanded": torch.ones(1).expand(LARGE),
    "part": torch.arange(2 * LARGE)[LARGE:],
}


@pytest.mark.parametrize("tensor", TRAVELLERS.values(), ids=TRAVELLERS)
def test_tensors_of_any_other_kind_travel_all_the_same(tensor):
    expected = tensor.clone()
    theirs = sent(tensor)
    for there in (theirs, tensor):
        assert torch.equal(there, expected)
        assert (there.dtype, there.shape) == (expected.dtype, expected.shape)


def test_many_small_tensors_do_not_take_a_file_each():
    """As a data set of texts may have them; a process may open 1,024 files."""
    assert len(dumps([torch.arange(number) for number in range(100)])[1]) < 10


def test_what_lies_deep_in_an_object_is_shared_and_what_is_the_same_stays_the_same(toy_dataset):
    dataset = toy_dataset(np.full((2, 2), LARGE // 64))  # images of 16 bytes
    before, image = dataset.inputs.tensor, dataset.inputs.tensor.clone()
    theirs, again = sent([dataset, {"images": dataset.inputs.tensor}])
    assert dataset.inputs.tensor is before
    assert theirs.inputs.tensor is again["images"]
    dataset.inputs.tensor[0] = 255 - dataset.inputs.tensor[0]
    assert torch.equal(theirs.inputs.tensor[0], 255 - image[0])
    assert np.array_equal(theirs.y, dataset.y)
    assert theirs.class_names == dataset.class_names


OTHER_PROCESS = """
import pickle
from pathlib import Path
tensor, array = pickle.loads(Path("data").read_bytes())
tensor.add_(tensor.new_tensor(array.tolist()))
print(tensor[:3].tolist())
"""


def test_another_process_sees_it_and_what_it_writes_is_seen_here(start_script, tmp_path, kind):
    tensor, script = torch.arange(LARGE), tmp_path / "script.py"
    data, held = dumps((tensor, np.full(LARGE, 10)))
    (tmp_path / "data").write_bytes(data)
    script.write_text(OTHER_PROCESS)
    other = start_script(tmp_path, script).result()
    assert other.out.strip() == "[10, 11, 12]", other.err
    assert torch.equal(tensor, torch.arange(10, LARGE + 10))
    assert len(held) == 2


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc to look into")
def test_nothing_is_left_once_nobody_holds_it(kind, tmp_path):
    def in_use():
        mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "fedfacet-" in line or "memfd" in line]
        return len(os.listdir("/proc/self/fd")), len(mapped), len(list(tmp_path.iterdir()))

    gc.collect()
    before = in_use()
    tensor = torch.arange(LARGE)
    data, held = dumps((tensor, np.zeros(LARGE)))
    theirs = pickle.loads(data)
    assert all(now > then for now, then in list(zip(in_use(), before, strict=True))[:2])
    del held
    assert in_use()[::2] == before[::2], "no descriptor is needed any more, and no file"
    assert torch.equal(theirs[0], tensor)
    assert tensor.sum() == LARGE * (LARGE - 1) // 2
    del theirs, tensor
    assert in_use() == before


def test_who_came_by_its_address_does_not_end_it(kind):
    memory = SharedBytes(8)
    theirs = pickle.loads(pickle.dumps(memory))
    theirs.tensor.fill_(7)
    del theirs
    assert pickle.loads(pickle.dumps(memory)).tensor.tolist() == [7] * 8


PARTITIONS = {
    "three clients": [[0, 3], [1], [2, 4, 5]],
    "clients without samples": [[], [1, 2], [], [], [0], []],
    "nobody has any": [[], []],
    "nobody": [],
}


@pytest.mark.parametrize("clients", PARTITIONS.values(), ids=PARTITIONS)
def test_a_partition_comes_back_equal(clients):
    partition = Partition(tuple(np.array(client, dtype=np.int64) for client in clients))
    for theirs in (pickle.loads(pickle.dumps(partition)), sent(partition)):
        assert theirs.digest == partition.digest
        assert theirs.num_clients == len(clients)
        assert [client.tolist() for client in theirs.indices] == clients
        assert all(client.dtype == np.int64 for client in theirs.indices)


def test_a_large_population_takes_no_more_than_its_positions():
    clients = np.arange(30_000).reshape(10_000, 3)
    partition = Partition(tuple(clients))
    assert len(pickle.dumps(partition)) < 8 * (30_000 + 10_000) + 1000
    assert len(dumps(partition)[0]) < 1000, "they are shared"


def test_memory_that_went_with_its_process_is_an_error_of_the_system():
    """As is a pipe that has ended: whoever waits for a worker's answer has one kind of error to catch."""
    memory = SharedBytes(8)
    packed = pickle.dumps(memory)
    del memory
    with pytest.raises(OSError, match="but its process is gone"):
        pickle.loads(packed)
