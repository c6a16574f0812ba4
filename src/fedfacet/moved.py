"""Where parts have lived before: a ``_target_`` that an older run folder or a user's yaml names still leads to its class."""

import re
from collections.abc import Mapping

MERGED = {
    "adapters": "frozen.Frozen lora.LoRA",
    "aggregators.robust": "coordinate_median.CoordinateMedian geometric_median.GeometricMedian krum.Krum norm_bound.NormBound "
    "trimmed_mean.TrimmedMean",
    "attacks": "gap.Gap lira.LiRA loss_threshold.LossThreshold rmia.RMIA trajectory.Trajectory",
    "capacities": "given.GivenCapacity largest.LargestCapacity proportions.ProportionsCapacity",
    "devices.synthetic": "diurnal.DiurnalDevices lognormal.LognormalDevices mobile_edge.MobileEdgeDevices tiers.TierDevices "
    "uniform.UniformDevices",
    "corrections": "proximal.ProximalCorrection",
    "losses": "generalized_cross_entropy.generalized_cross_entropy group_penalty.group_penalty margin.margin",
    "models.resnet50": "resnet50_gn.ResNet50GN",
    "objectives.counting": "fedlc.FedLCObjective fedrs.FedRSObjective reweighing.ReweighingObjective",
    "participation": "check_in.CheckIn dirichlet.DirichletParticipation dropouts.Dropouts stragglers.Stragglers",
    "partitioners.natural": "grouped_natural.GroupedNaturalPartitioner",
    "partitioners.synthetic": "iid.IIDPartitioner dirichlet.DirichletPartitioner quantity_skew.QuantitySkewPartitioner "
    "classes_per_client.ClassesPerClientPartitioner sampled_sharder.SampledSharder",
    "personal": "head.PersonalHead model.PersonalModel norm_layers.PersonalNormLayers",
    "schedulers": "cosine.CosineScheduler exponential.ExponentialScheduler multi_step.MultiStepScheduler step.StepScheduler "
    "one_cycle.OneCycleScheduler plateau.PlateauScheduler warm_restarts.WarmRestartsScheduler",
    "termination": "accuracy.AccuracyTermination budget.BudgetTermination energy.EnergyTermination silence.SilenceTermination "
    "plateau.PlateauTermination simulated_time.SimulatedTimeTermination",
    "transforms": "clip.ClipUpdate clip_and_noise.ClipAndNoise label_flip.LabelFlip packet_loss.PacketLoss "
    "random_update.RandomUpdate sign_flip.SignFlip",
}
"""A module whose parts had a file each before -> these parts, by their former names in its room."""

MOVED = {
    "fedfacet.aggregators.fedbuff.FedBuff": "fedfacet.methods.fedbuff.FedBuff",
    "fedfacet.aggregators.lag.LAG": "fedfacet.methods.lag.LAG",
    "fedfacet.callbacks.auc.Auc": "fedfacet.callbacks.probabilities.Auc",
    "fedfacet.callbacks.calibration.Calibration": "fedfacet.callbacks.probabilities.Calibration",
    "fedfacet.callbacks.client_fairness.ClientFairness": "fedfacet.callbacks.evaluate_clients.ClientFairness",
    "fedfacet.callbacks.fairness.Fairness": "fedfacet.plots.fairness.Fairness",
    "fedfacet.callbacks.figures.Figures": "fedfacet.plots.figures.Figures",
    "fedfacet.callbacks.membership.Membership": "fedfacet.plots.membership.Membership",
    "fedfacet.callbacks.personal_evaluate.PersonalEvaluate": "fedfacet.callbacks.evaluate_clients.PersonalEvaluate",
    "fedfacet.callbacks.submodel_evaluate.SubmodelEvaluate": "fedfacet.callbacks.evaluate_clients.SubmodelEvaluate",
    "fedfacet.callbacks.tensorboard_log.TensorBoardLog": "fedfacet.callbacks.lightning_log.TensorBoardLog",
    "fedfacet.clients.queries.bid.Bid": "fedfacet.methods.fmore.Bid",
    "fedfacet.clients.queries.contract.Contract": "fedfacet.methods.cbim.Contract",
    "fedfacet.clients.queries.smoothness.Smoothness": "fedfacet.methods.lag.Smoothness",
    "fedfacet.data.celeba.CelebA": "fedfacet.data.faces.CelebA",
    "fedfacet.data.cifar10.CIFAR10": "fedfacet.data.cifar.CIFAR10",
    "fedfacet.data.cifar100.CIFAR100": "fedfacet.data.cifar.CIFAR100",
    "fedfacet.data.cmnist.ColouredMNIST": "fedfacet.data.mnist.ColouredMNIST",
    "fedfacet.data.covid_fl.CovidFL": "fedfacet.data.medical.CovidFL",
    "fedfacet.data.fairface.FairFace": "fedfacet.data.faces.FairFace",
    "fedfacet.data.retina.Retina": "fedfacet.data.medical.Retina",
    "fedfacet.data.synthetic_spawrious.SyntheticSpawrious": "fedfacet.data.spawrious.SyntheticSpawrious",
    "fedfacet.data.utkface.UTKFace": "fedfacet.data.faces.UTKFace",
    "fedfacet.clients.queries.holdout_counts.HoldoutCounts": "fedfacet.clients.queries.group_performance.HoldoutCounts",
    "fedfacet.clients.queries.loss_moments.LossMoments": "fedfacet.clients.queries.local_loss.LossMoments",
    "fedfacet.clients.queries.valuation.Valuation": "fedfacet.clients.queries.local_loss.Valuation",
    "fedfacet.selectors.cbim.CBIMSelector": "fedfacet.methods.cbim.CBIMSelector",
    "fedfacet.selectors.favor.FavorSelector": "fedfacet.methods.favor.FavorSelector",
    "fedfacet.selectors.fedrk.FedRKSelector": "fedfacet.methods.fedrk.FedRKSelector",
    "fedfacet.selectors.feddiverse.FedDiverseSelector": "fedfacet.methods.feddiverse.FedDiverseSelector",
    "fedfacet.selectors.fmore.FMoreSelector": "fedfacet.methods.fmore.FMoreSelector",
    "fedfacet.selectors.lag.LagSelector": "fedfacet.methods.lag.LagSelector",
    "fedfacet.selectors.s_fedavg.SFedAvgSelector": "fedfacet.methods.s_fedavg.SFedAvgSelector",
    "fedfacet.transforms.Silence": "fedfacet.methods.lag.Silence",
    **{
        f"fedfacet.{module.partition('.')[0]}.{before}": f"fedfacet.{module}.{before.partition('.')[2]}"
        for module, parts in MERGED.items()
        for before in parts.split()
    },
}
"""Former name -> the name now. Python imports do not look here."""

FORMER = {now: before for before, now in MOVED.items()}
"""The name now -> the former one, by which the cells of a sweep and the attacks of an audit are still named."""


def with_current_names(text: str) -> str:
    """Return a text, such as a yaml, JSON or an override, with the names that the parts in it have now."""
    return _renamed(text, MOVED)


def with_former_names(text: str) -> str:
    """Return a text as it was before parts moved, for digests that stay."""
    return _renamed(text, FORMER)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"(?<![\w./])fedfacet(?:\.\w+)+", lambda name: names.get(name[0], name[0]), text)
