"""A client's objective is a LightningModule like any other, in somebody else's project."""

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedfacet.objectives.classification import ClassificationObjective


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))


@pytest.fixture
def loader():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 3, 2, 2, generator=draw), torch.arange(20) % 3
    return DataLoader(TensorDataset(x, y, torch.zeros_like(y)), batch_size=8)


@pytest.mark.filterwarnings("ignore")  # a plain Trainer's advice on loaders and loggers
def test_it_fits_validates_tests_predicts_and_loads(loader, tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        objective = ClassificationObjective(network())
    trainer = L.Trainer(max_epochs=2, logger=False, default_root_dir=tmp_path, enable_progress_bar=False, accelerator="cpu")
    trainer.fit(objective, loader, loader)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    x, y = (torch.cat(parts) for parts in zip(*((batch[0], batch[1]) for batch in loader), strict=True))
    with torch.no_grad():
        logits = objective.eval()(x)
    (tested,) = trainer.test(objective, loader, verbose=False)
    assert tested["test/acc"] == pytest.approx((logits.argmax(dim=1) == y).float().mean().item())
    assert tested["test/loss"] == pytest.approx(nn.functional.cross_entropy(logits, y).item(), rel=1e-5)
    assert trainer.validate(objective, loader, verbose=False)[0]["val/acc"] == tested["test/acc"]
    assert torch.equal(torch.cat(trainer.predict(objective, loader)), logits)
    assert torch.equal(objective.predict_step(x, 0), logits)
    loaded = ClassificationObjective.load_from_checkpoint(tmp_path / "last.ckpt", model=network())
    with torch.no_grad():
        assert torch.equal(loaded.eval()(x), logits)
