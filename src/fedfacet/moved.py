"""Where parts have lived before: a ``_target_`` that an older run folder or a user's yaml names still leads to its class."""

import re

MOVED = {
    "fedfacet.aggregators.lag.LAG": "fedfacet.methods.lag.LAG",
    "fedfacet.callbacks.auc.Auc": "fedfacet.callbacks.probabilities.Auc",
    "fedfacet.callbacks.calibration.Calibration": "fedfacet.callbacks.probabilities.Calibration",
    "fedfacet.callbacks.client_fairness.ClientFairness": "fedfacet.callbacks.evaluate_clients.ClientFairness",
    "fedfacet.callbacks.personal_evaluate.PersonalEvaluate": "fedfacet.callbacks.evaluate_clients.PersonalEvaluate",
    "fedfacet.callbacks.submodel_evaluate.SubmodelEvaluate": "fedfacet.callbacks.evaluate_clients.SubmodelEvaluate",
    "fedfacet.callbacks.tensorboard_log.TensorBoardLog": "fedfacet.callbacks.lightning_log.TensorBoardLog",
    "fedfacet.clients.queries.bid.Bid": "fedfacet.methods.fmore.Bid",
    "fedfacet.clients.queries.contract.Contract": "fedfacet.methods.cbim.Contract",
    "fedfacet.clients.queries.smoothness.Smoothness": "fedfacet.methods.lag.Smoothness",
    "fedfacet.selectors.cbim.CBIMSelector": "fedfacet.methods.cbim.CBIMSelector",
    "fedfacet.selectors.favor.FavorSelector": "fedfacet.methods.favor.FavorSelector",
    "fedfacet.selectors.feddiverse.FedDiverseSelector": "fedfacet.methods.feddiverse.FedDiverseSelector",
    "fedfacet.selectors.fmore.FMoreSelector": "fedfacet.methods.fmore.FMoreSelector",
    "fedfacet.selectors.lag.LagSelector": "fedfacet.methods.lag.LagSelector",
    "fedfacet.selectors.s_fedavg.SFedAvgSelector": "fedfacet.methods.s_fedavg.SFedAvgSelector",
    "fedfacet.transforms.silence.Silence": "fedfacet.methods.lag.Silence",
}
"""Former name -> the name now. Python imports do not look here."""

FORMER = {now: before for before, now in MOVED.items()}
"""The name now -> the former one, by which the cells of a sweep are still named."""


def with_current_names(text: str) -> str:
    """Return a text, such as a yaml, JSON or an override, with the names that the parts in it have now."""
    return re.sub(r"(?<![\w./])fedfacet(?:\.\w+)+", lambda name: MOVED.get(name[0], name[0]), text)
