import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fedfacet.errors import DisclosureError
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.losses import margin
from fedfacet.objectives.counting import ReweighingObjective
from fedfacet.types import Batch


@given(arrays(np.int64, st.tuples(st.integers(2, 4), st.integers(2, 4)), elements=st.integers(1, 500)))
def test_weighted_counts_factorise_and_weights_average_to_one(counts):
    weights = InteractionMatrix(counts).independence_weights
    joint = weights * counts / counts.sum()
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum() ** 2
    assert joint == pytest.approx(expected, rel=1e-12)
    assert joint.sum() == pytest.approx(1, rel=1e-12)


def test_independent_counts_and_missing_pairs():
    assert InteractionMatrix([[10, 20], [30, 60]]).independence_weights.tolist() == [[1, 1], [1, 1]]
    assert InteractionMatrix([[10, 0], [10, 20]]).independence_weights[0].tolist() == [0.5, 0.0]


def samples(a):
    draw = torch.Generator().manual_seed(0)
    return Batch(torch.randn(8, 3, generator=draw), torch.tensor([0, 0, 0, 1, 1, 1, 1, 1]), torch.tensor(a))


def objective():
    torch.manual_seed(0)
    return ReweighingObjective(torch.nn.Linear(3, 2))


def test_the_loss_is_the_weighted_cross_entropy():
    batch, own = samples([0, 0, 1, 0, 1, 1, 1, 1]), objective()
    own.before_steps([Batch(*(column[:5] for column in batch)), Batch(*(column[5:] for column in batch))], 1)
    counts = {(0, 0): 2, (0, 1): 1, (1, 0): 1, (1, 1): 4}
    of_y, of_a = {0: 3, 1: 5}, {0: 3, 1: 5}
    pairs = list(zip(batch.y.tolist(), batch.a.tolist(), strict=True))
    weights = torch.tensor([of_y[y] * of_a[a] / 8 / counts[y, a] for y, a in pairs])
    losses = functional.cross_entropy(own(batch.x), batch.y, reduction="none")
    assert own.training_step(batch, 0).item() == pytest.approx((weights * losses).mean().item(), rel=1e-6)


def test_of_independent_pairs_it_is_the_cross_entropy():
    batch, own = Batch(torch.randn(4, 3), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])), objective()
    own.before_steps([batch], 1)
    assert torch.equal(own.training_step(batch, 0), functional.cross_entropy(own(batch.x), batch.y, reduction="none").mean())


def test_it_trains_under_a_plain_trainer(tmp_path):
    batch, own = samples([0, 0, 1, 0, 1, 1, 1, 1]), objective()
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    loader = DataLoader(TensorDataset(*batch), batch_size=4)
    trainer.fit(own, loader, loader)
    assert own._weights_YA.tolist() == InteractionMatrix([[2, 1], [1, 4]]).independence_weights.astype(np.float32).tolist()


def test_another_loss_and_unknown_attributes_are_refused():
    with pytest.raises(ValueError, match=r"^Expected `loss=cross_entropy`"):
        ReweighingObjective(torch.nn.Linear(3, 2), loss=margin)
    with pytest.raises(DisclosureError, match=r"^Expected clients that know the attributes"):
        objective().before_steps([samples([-1] * 8)], 1)


def test_whoever_asks_for_the_loss_gets_no_clients_weights():
    """A shadow model of an attacker's is trained with the run's loss."""
    own = objective()
    own.before_steps([samples([0, 0, 1, 0, 1, 1, 1, 1])], 1)
    batch = samples([1, 1, 0, 0, 1, 0, 1, 0])
    assert torch.equal(own.loss(own(batch.x), batch), functional.cross_entropy(own(batch.x), batch.y))
