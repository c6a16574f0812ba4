"""What crosses a channel, message after message."""

import pickle
from multiprocessing import Pipe

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfacet import state
from fedfacet.parallel.shared_memory import Channel

SHAPES = [(), (0,), (3,), (2, 3), (4, 1, 5)]
DTYPES = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool]
TENSORS = st.tuples(st.sampled_from(SHAPES), st.sampled_from(DTYPES))
BUNDLES = st.lists(st.dictionaries(st.sampled_from("abc"), TENSORS, max_size=3), max_size=3)


@pytest.fixture
def ends():
    left, right = Pipe()
    yield Channel(left), Channel(right)
    left.close()
    right.close()


def filled(layout, value):
    return [{name: torch.full(shape, value).to(dtype) for name, (shape, dtype) in bundle.items()} for bundle in layout]


def crossed(sender, receiver, message, bundles):
    """Send and receive; return copies, since the next message overwrites what has come."""
    sender.send(message, bundles)
    received, views = receiver.receive()
    return received, [state.clone(view) for view in views]


@given(st.lists(BUNDLES, min_size=1, max_size=6))
def test_messages_of_the_same_and_of_other_tensors_follow_each_other(layouts):
    """Each is sent twice: where things lie is said once only, what is there every time."""
    left, right = Pipe()
    sender, receiver = Channel(left), Channel(right)
    for number, layout in enumerate(layouts):
        for value in (2 * number, 2 * number + 1):
            message, bundles = crossed(sender, receiver, {"number": value}, expected := filled(layout, value))
            assert message == {"number": value}
            assert [list(bundle) for bundle in bundles] == [list(bundle) for bundle in expected]
            assert [state.digest(bundle) for bundle in bundles] == [state.digest(bundle) for bundle in expected]
    left.close()
    right.close()


def test_both_directions_have_memory_of_their_own(ends):
    left, right = ends
    left.send("there", [{"x": torch.ones(3)}])
    _, (there,) = right.receive()
    right.send("back", [{"x": torch.zeros(3)}])
    _, (back,) = left.receive()
    assert there["x"].tolist() == [1, 1, 1]
    assert back["x"].tolist() == [0, 0, 0]


def test_tensors_that_are_not_contiguous_arrive_whole(ends):
    x = torch.arange(6.0).reshape(2, 3).T
    _, (bundle,) = crossed(*ends, "transposed", [{"x": x}])
    assert torch.equal(bundle["x"], x)


def test_what_a_receiver_does_to_a_tensor_ends_with_its_message(ends):
    """A tensor that was made to require gradients must not do so in the next message."""
    sender, receiver = ends
    sender.send("first", [{"x": torch.ones(3)}])
    receiver.receive()[1][0].pop("x").requires_grad_()
    sender.send("second", [{"x": torch.ones(3)}])
    assert not receiver.receive()[1][0]["x"].requires_grad


def test_a_message_that_could_not_be_sent_changes_nothing_for_the_next(ends):
    """A function of this one's has no name that pickle could find."""
    left, right = ends
    bundles = [{"a": torch.arange(3.0)}]
    with pytest.raises((AttributeError, TypeError, ValueError, pickle.PicklingError)):
        left.send(lambda: None, bundles)
    left.send("next", bundles)
    message, arrived = right.receive()
    assert message == "next"
    assert [state.digest(bundle) for bundle in arrived] == [state.digest(bundle) for bundle in bundles]
