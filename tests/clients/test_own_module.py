"""LightningModules of the user's own: each form that Lightning's Trainer takes, and what they log and measure of themselves."""

import lightning as L
import numpy as np
import pytest
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.optim.lr_scheduler import ConstantLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR

from fedfacet import IIDPartitioner, LocalTraining, compare, dataset_from_arrays, deal, federate, load_run
from fedfacet.clients.queries.counts import NumSamples
from fedfacet.clients.queries.local_loss import LocalLoss
from fedfacet.commands import report
from fedfacet.engines.workers import WorkersEngine
from fedfacet.errors import ConfigError, InfeasiblePartitionError
from fedfacet.partitioners.synthetic import DirichletPartitioner
from fedfacet.privacy.disclosure import DisclosurePolicy
from fedfacet.schedulers import StepScheduler
from fedfacet.selectors.pow_d import PowDSelector

RNG = np.random.default_rng(0)
X, A = RNG.normal(size=(240, 5)).astype(np.float32), RNG.integers(0, 2, 240)
Y = (X[:, 0] + RNG.normal(size=240) > 0).astype(np.int64)
NUMBERS, LABELS = X @ np.arange(5) + 2 * A, (X[:, :3] > 0).astype(np.int64)


def data_of(y=Y):
    return deal(dataset_from_arrays(X, y, A), IIDPartitioner(num_clients=4))


class Plain(L.LightningModule):
    """What a module looks like that always trained."""

    def __init__(self, num_outputs=2):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(5, num_outputs)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, batch_idx):
        return cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trained(module, y=Y, *, local=None, rounds=2, **parts):
    """Return the federation after its rounds, and the last result."""
    federation = federate(data_of(y), module, cohort_size=2, rounds=rounds, local=local, **parts)
    result = [federation.run_round() for _ in range(rounds)][-1]
    return federation, result


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


PLAIN = trained(Plain())[0].state.model


class OneOptimizer(Plain):
    def configure_optimizers(self):
        return [super().configure_optimizers()]


class TwoLists(Plain):
    def configure_optimizers(self):
        return [super().configure_optimizers()], []


class InADict(Plain):
    def configure_optimizers(self):
        return {"optimizer": super().configure_optimizers()}


class ConstantRate(Plain):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": ConstantLR(optimizer, factor=1.0), "interval": "step"}]


class OfTwo(Plain):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return cross_entropy(self.layer(x), y)


class OfThree(Plain):
    def training_step(self, batch, batch_idx):
        x, y, _ = batch
        return {"loss": cross_entropy(self.layer(x), y), "more": 1}


class WithoutNumber(Plain):
    def training_step(self, batch):
        return super().training_step(batch, 0)


@pytest.mark.parametrize("kind", [OneOptimizer, TwoLists, InADict, ConstantRate, OfTwo, OfThree, WithoutNumber])
def test_every_form_trains_to_the_same_bits(kind):
    assert same(trained(kind())[0].state.model, PLAIN)


@pytest.mark.parametrize("kind", [OfTwo, WithoutNumber, ConstantRate])
def test_worker_processes_do_the_same(kind):
    assert same(trained(kind(), engine=WorkersEngine(workers=2))[0].state.model, PLAIN)


def test_worker_processes_log_the_same():
    _, here = trained(Regression(), NUMBERS)
    _, there = trained(Regression(), NUMBERS, engine=WorkersEngine(workers=2))
    assert here.metrics == there.metrics
    assert here.metrics["train/mse"] > 0


class Skipping(Plain):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) if batch_idx == 0 else None


def test_a_step_that_returns_nothing_is_skipped():
    two, one = (LocalTraining(unit="steps", amount=steps, batch_size=20) for steps in (2, 1))
    federation, result = trained(Skipping(), local=two)
    assert same(federation.state.model, trained(Plain(), local=one)[0].state.model)
    assert {receipt.num_seen for receipt in result.receipts} == {20}


class Nothing(Plain):
    def training_step(self, batch, batch_idx):
        return None


def test_a_module_that_skips_all_steps_stays_as_it_is():
    federation, result = trained(Nothing())
    assert same(federation.state.model, dict(Nothing().state_dict()) | {})
    assert np.isnan(result.metrics["train/loss"])


class Steps(Plain):
    """Its learning rate halves, by the interval that it is given."""

    def __init__(self, **settings):
        super().__init__()
        self.settings = settings

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 1, gamma=0.5), **self.settings}}


class ByHand(Plain):
    """The same, written into the loss: SGD is linear in it."""

    def __init__(self, period):
        super().__init__()
        self.period = period

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * 0.5 ** (batch_idx // self.period)


@pytest.mark.parametrize(
    ("settings", "period"),
    [({}, 3), ({"interval": "step"}, 1), ({"interval": "step", "frequency": 2}, 2), ({"frequency": 2}, 6)],
)
def test_a_scheduler_begins_anew_with_each_client(settings, period):
    sizes = {len(indices) for indices in data_of().partition.indices}
    local = LocalTraining(unit="epochs", amount=3, batch_size=-(-max(sizes) // 3))
    ours, theirs = (trained(module, local=local)[0].state.model for module in (Steps(**settings), ByHand(period)))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-7) for name in ours)


class Warm(Plain):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": LambdaLR(optimizer, lambda step: 1 + step), "interval": "step"}]


class WarmByHand(Plain):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + batch_idx)


def test_the_federations_scheduler_scales_the_modules_own():
    local, half = LocalTraining(unit="steps", amount=3), StepScheduler(every_n_rounds=1, decay=0.5)
    ours, theirs = (trained(module(), local=local, scheduler=half)[0].state.model for module in (Warm, WarmByHand))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-7) for name in ours)


class Plateau(Plain):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "val_loss"}}


class NoOptimizer(Plain):
    def configure_optimizers(self):
        return None


class WithoutForward(Plain):
    forward = L.LightningModule.forward


class Failing(Plain):
    def validation_step(self, batch, batch_idx):
        x, y, a, weights = batch
        self.log("val_loss", mse_loss(x, y) * a * weights)


class Vector(Plain):
    def training_step(self, batch, batch_idx):
        self.log("all", torch.ones(3))
        return super().training_step(batch, batch_idx)


class Largest(Plain):
    def training_step(self, batch, batch_idx):
        self.log("largest", 1.0, reduce_fx="max")
        return super().training_step(batch, batch_idx)


class Attached(Plain):
    """It unpacks two values, and fails at something else afterwards."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return cross_entropy(self.layer(x), y) / self.trainer.max_epochs


class OneCycle(Plain):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [OneCycleLR(optimizer, max_lr=0.1, total_steps=self.trainer.estimated_stepping_batches)]


class Short(Plain):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = OneCycleLR(optimizer, max_lr=0.1, total_steps=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Counting(Plain):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * min(1.0, self.current_epoch / 5 + 0.1)


def test_what_only_a_trainer_counts_is_warned_of(caplog):
    federate(data_of(), Counting())
    assert [text for text in caplog.messages if "Counting.training_step reads `self.current_epoch`, which stays 0" in text]


def test_an_optimizer_beside_that_of_the_module_is_warned_of(caplog):
    federate(data_of(), Plain(), optimizer=torch.optim.Adam)
    assert [text for text in caplog.messages if "Plain trains with the optimizer of its configure_optimizers" in text]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Short, r"a OneCycleLR that lasts for a client's round of \d+ steps, but it has 1: give it total_steps="),
        (OneCycle, "Expected OneCycle.configure_optimizers .* is not attached to a `Trainer`.*A client has no Trainer"),
        (Plateau, "to return a scheduler that counts steps or epochs, but got ReduceLROnPlateau"),
        (NoOptimizer, "to return one optimizer, but got NoneType"),
        (lambda: Steps(interval="batch"), "interval='batch'"),
        (WithoutForward, "Expected WithoutForward to return a logit per class from `forward`, or to log"),
        (Failing, "Expected Failing.validation_step to measure a batch .* which is x, y, a, but it fails"),
        (Vector, "`self.log` to be given one number for 'all', but it got a tensor of shape"),
        (Attached, r"Attached is not attached to a `Trainer`"),
        (Largest, "`self.log` to take means, .* 'largest' has reduce_fx='max'"),
    ],
)
def test_what_cannot_train_or_measure_is_refused_before_the_first_round(kind, message):
    with pytest.raises((ConfigError, ValueError), match=message):
        federate(data_of(), kind())


class Binary(Plain):
    """One logit, which the sigmoid makes a probability."""

    def __init__(self):
        super().__init__(1)

    def training_step(self, batch, batch_idx):
        return binary_cross_entropy_with_logits(self.layer(batch.x)[:, 0], batch.y.float())


def test_one_logit_is_measured_as_two_classes():
    federation, result = trained(Binary())
    data, model = data_of(), federation.state.model
    batch = data.dataset.batch(data.dataset.test)
    z = (batch.x @ model["layer.weight"].T + model["layer.bias"])[:, 0]
    assert result.metrics["test/acc"] == pytest.approx(((z > 0) == (batch.y == 1)).float().mean().item())
    assert result.metrics["test/loss"] == pytest.approx(binary_cross_entropy_with_logits(z, batch.y.float()).item(), rel=1e-5)
    assert "test/acc_worst_group" in result.metrics


def test_one_logit_is_measured_the_same_by_worker_processes():
    module = Binary()
    _, result = trained(module)
    _, other = trained(Binary(), engine=WorkersEngine(workers=1))
    assert other.metrics == result.metrics
    module.load_state_dict(Binary().state_dict())
    assert trained(module)[1].metrics == result.metrics  # where an earlier federation has had the module


class SecondOfTwo(Binary):
    """The same function as ``Binary``, as a logit per class."""

    def forward(self, x):
        return nn.functional.pad(self.layer(x), (1, 0))


def test_queries_take_one_logit_as_two_classes():
    answers = []
    for module in (Binary(), SecondOfTwo()):
        selector = PowDSelector(num_candidates=3, local_loss=LocalLoss(), num_samples=NumSamples())
        federation, result = trained(module, selector=selector)
        answers.append((result.cohort, federation.state.model, result.metrics["comm/query_samples"]))
        assert not module._forward_hooks
    assert answers[0][0] == answers[1][0]
    assert answers[0][2] == answers[1][2] > 0
    assert same(answers[0][1], answers[1][1])


class Regression(Plain):
    """It measures itself, by a mean and by a metric that is no mean."""

    def __init__(self):
        super().__init__(1)
        self.r2 = torchmetrics.R2Score()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = mse_loss(self.layer(x)[:, 0], y)
        self.log("train_mse", loss, prog_bar=True)
        self.log("train/loss", loss + 1)
        return loss

    def validation_step(self, batch, batch_idx):
        z = self.layer(batch.x)[:, 0]
        self.log("val_mse", mse_loss(z, batch.y))
        self.r2.update(z, batch.y)
        self.log("val_r2", self.r2)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_a_module_measures_itself_and_its_groups():
    federation, result = trained(Regression(), NUMBERS, local=LocalTraining(batch_size=20))
    data, model, metrics = data_of(NUMBERS), federation.state.model, result.metrics
    batch = data.dataset.batch(data.dataset.test)
    z = (batch.x @ model["layer.weight"].T + model["layer.bias"])[:, 0]
    by_group = [mse_loss(z[batch.a == value], batch.y[batch.a == value]).item() for value in (0, 1)]
    assert metrics["test/mse"] == pytest.approx(mse_loss(z, batch.y).item(), rel=1e-5)
    assert [metrics[f"test/mse_group/y0_a{value}"] for value in (0, 1)] == pytest.approx(by_group, rel=1e-5)
    assert metrics["test/mse_worst_group"] == pytest.approx(max(by_group), rel=1e-5)
    assert metrics["test/r2"] == pytest.approx(torchmetrics.functional.r2_score(z, batch.y).item(), rel=1e-4)
    assert metrics["test/r2_worst_group"] == min(metrics["test/r2_group/y0_a0"], metrics["test/r2_group/y0_a1"])
    assert "test/acc" not in metrics
    assert metrics["train/mse"] == pytest.approx(metrics["train/loss"], rel=1e-6)
    assert metrics["train/module_loss"] == pytest.approx(metrics["train/loss"] + 1, rel=1e-6)


class ManyLabels(Plain):
    """F1 over all samples of an epoch, computed at its end."""

    def __init__(self):
        super().__init__(3)
        self.f1 = torchmetrics.classification.MultilabelF1Score(3)

    def training_step(self, batch, batch_idx):
        return binary_cross_entropy_with_logits(self.layer(batch.x), batch.y)

    def test_step(self, batch, batch_idx):
        self.f1.update(self.layer(batch.x), batch.y.int())

    def on_test_epoch_end(self):
        self.log_dict({"f1": self.f1.compute()})
        self.f1.reset()


def test_what_is_computed_at_the_end_of_an_epoch_is_of_all_samples():
    federation, result = trained(ManyLabels(), LABELS)
    data, model = data_of(LABELS), federation.state.model
    for split, indices in data.splits.items():
        batch = data.dataset.batch(indices)
        z = batch.x @ model["layer.weight"].T + model["layer.bias"]
        known = torchmetrics.functional.classification.multilabel_f1_score(z, batch.y.int(), 3)
        assert result.metrics[f"{split}/f1"] == pytest.approx(known.item(), rel=1e-5)


class Best(Plain):
    """It keeps its best accuracy, and all losses, of all that it measures."""

    def __init__(self):
        super().__init__()
        self.best, self.losses = 0.0, []
        self.several = torchmetrics.MetricCollection([torchmetrics.MeanAbsoluteError(), torchmetrics.MeanSquaredError()])

    def validation_step(self, batch, batch_idx):
        z = self.layer(batch[0])
        self.losses.append(cross_entropy(z, batch[1]))
        self.several.update(z[:, 1], batch[1].float())
        self.best = max(self.best, float((z.argmax(dim=1) == batch[1]).float().mean()))

    def on_validation_epoch_end(self):
        self.log("val_best", self.best)
        self.log("val_losses", float(len(self.losses)))


def test_no_measurement_learns_of_another(caplog):
    _, result = trained(Best(), rounds=3)
    for split in ("val", "test"):
        assert result.metrics[f"{split}/best"] == pytest.approx(result.metrics[f"{split}/acc"])
        assert result.metrics[f"{split}/losses"] == 1
    assert "_groups" not in caplog.text
    assert [text for text in caplog.messages if "changes 'best', 'losses', and FedFacet puts it back" in text]


class Both(Plain):
    """It predicts classes, and measures itself besides."""

    def validation_step(self, batch, batch_idx):
        z = self(batch.x)
        self.log_dict({"val/loss": 2 * cross_entropy(z, batch.y), "val/one": 1.0})


def test_names_that_are_taken_are_marked():
    _, result = trained(Both())
    metrics = result.metrics
    assert metrics["val/module_loss"] == pytest.approx(2 * metrics["val/loss"], rel=1e-5)
    assert metrics["test/one"] == 1.0
    assert "val/one_worst_group" not in metrics
    assert "val/acc_worst_group" in metrics


def test_parts_that_need_classes_say_so():
    selector = PowDSelector(local_loss=LocalLoss(), num_samples=NumSamples())
    with pytest.raises(ConfigError, match="logit per class for selector=PowDSelector, but Regression has numbers to predict"):
        federate(data_of(NUMBERS), Regression(), selector=selector, cohort_size=2)


def test_a_plain_network_needs_classes():
    with pytest.raises(ConfigError, match=r"Expected classes for ClassificationObjective, .* give a LightningModule"):
        federate(data_of(NUMBERS), nn.Linear(5, 1))


def test_a_partition_by_classes_needs_them():
    with pytest.raises(InfeasiblePartitionError, match=r"Expected classes for DirichletPartitioner, .* choose IIDPartitioner"):
        deal(dataset_from_arrays(X, NUMBERS, A), DirichletPartitioner(num_clients=4))
    samples = dataset_from_arrays(X, NUMBERS, A, columns={"site": A})
    assert deal(samples, DirichletPartitioner(num_clients=4, label="site")).partition.num_clients == 4


class Module(L.LightningDataModule):
    pass


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"data": Module()},
            r"but got Module: call its `setup`, and give .* `deal\(dataset_from_torch",
        ),
        ({"data": X}, r"which client has which samples, but got ndarray: give the samples to clients by `deal"),
        (
            {"callbacks": {"early": EarlyStopping("val/acc")}},
            r"'early' .* got EarlyStopping: .* termination=fedfacet",
        ),
        ({"callbacks": {"best": ModelCheckpoint()}}, "but got ModelCheckpoint: give the federation a `folder`"),
    ],
)
def test_objects_of_a_trainer_are_refused_with_their_counterpart(given, message):
    with pytest.raises(TypeError, match=message):
        federate(**{"data": data_of(), "model": Plain()} | given)


def test_logs_of_clients_go_nowhere_under_privacy(caplog):
    _, result = trained(Regression(), NUMBERS, disclosure=DisclosurePolicy(allows=(), attributes="clients"))
    assert "train/mse" not in result.metrics
    assert "gives to self.log is left out, as privacy or disclosure does not cover it" in caplog.text


class Logging(Plain):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train_mine", loss)
        return loss


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_a_trainer_takes_the_module_afterwards():
    module, data = Logging(), data_of().dataset
    _, result = trained(module)
    assert result.metrics["train/mine"] == pytest.approx(result.metrics["train/loss"], rel=1e-6)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data.batch(data.train)), batch_size=20)
    settings = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", **settings)
    trainer.fit(module.train(), loader)
    assert trainer.callback_metrics["train_mine"] > 0


def test_a_kept_run_is_judged_by_what_the_module_measures(tmp_path, capsys):
    class Worse(Regression):
        """Its steps lead away from the targets, so that the first round is the best."""

        def training_step(self, batch, batch_idx):
            return -0.1 * mse_loss(self.layer(batch.x)[:, 0], batch.y)

    federation = federate(data_of(NUMBERS), Worse(), rounds=3, folder=tmp_path / "run")
    result = federation.fit()
    summary = load_run(tmp_path / "run").summary
    worst = [row["val/mse_worst_group"] for row in result.metrics]
    assert worst == sorted(worst)
    assert summary["best"]["round"] == 1
    assert "test/mse_worst_group" in repr(result)
    in_memory = federate(data_of(NUMBERS), Worse(), rounds=3).fit()
    for at in ("best", "last"):
        compared = compare(in_memory, result, at=at)
        assert (compared.metric, compared.difference.mean) == ("test/mse_worst_group", 0)
    assert report.main([str(tmp_path / "run")]) == 0
    assert "`test/mse_worst_group`, last" in capsys.readouterr().out
