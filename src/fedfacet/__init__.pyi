"""The public names of the package, each with the module that it lives in; ``__init__.py`` loads a name when it is asked for."""

from fedfacet.aggregators.base import Aggregator as Aggregator
from fedfacet.aggregators.fedavg import FedAvg as FedAvg
from fedfacet.algorithm import Algorithm as Algorithm
from fedfacet.algorithm import Verbs as Verbs
from fedfacet.assembly import federate as federate
from fedfacet.callbacks.base import Callback as Callback
from fedfacet.callbacks.evaluate import Evaluate as Evaluate
from fedfacet.clients.local_training import LocalTraining as LocalTraining
from fedfacet.corrections import Correction as Correction
from fedfacet.data.arrays import dataset_from_arrays as dataset_from_arrays
from fedfacet.data.arrays import dataset_from_torch as dataset_from_torch
from fedfacet.data.dataset import Dataset as Dataset
from fedfacet.data.federated import FederatedData as FederatedData
from fedfacet.data.federated import deal as deal
from fedfacet.data.frames import dataset_from_frame as dataset_from_frame
from fedfacet.data.source import DatasetSource as DatasetSource
from fedfacet.engines.sequential import SequentialEngine as SequentialEngine
from fedfacet.engines.workers import WorkersEngine as WorkersEngine
from fedfacet.errors import FedFacetError as FedFacetError
from fedfacet.federation import Federation as Federation
from fedfacet.heterogeneity import InteractionMatrix as InteractionMatrix
from fedfacet.mechanism import Mechanism as Mechanism
from fedfacet.methods.feddiverse import FedDiverseSelector as FedDiverseSelector
from fedfacet.metrics.group_accuracy import GroupAccuracy as GroupAccuracy
from fedfacet.metrics.group_accuracy import WorstGroupAccuracy as WorstGroupAccuracy
from fedfacet.metrics.group_fairness import AccuracyParityDifference as AccuracyParityDifference
from fedfacet.metrics.group_fairness import CalibrationDifference as CalibrationDifference
from fedfacet.metrics.group_fairness import DemographicParityDifference as DemographicParityDifference
from fedfacet.metrics.group_fairness import DemographicParityRatio as DemographicParityRatio
from fedfacet.metrics.group_fairness import DiscriminationIndex as DiscriminationIndex
from fedfacet.metrics.group_fairness import EqualizedOddsDifference as EqualizedOddsDifference
from fedfacet.metrics.group_fairness import EqualOpportunityDifference as EqualOpportunityDifference
from fedfacet.metrics.group_fairness import PredictiveEqualityDifference as PredictiveEqualityDifference
from fedfacet.objectives.classification import ClassificationObjective as ClassificationObjective
from fedfacet.partitioners.interaction_matrix import InteractionMatrixPartitioner as InteractionMatrixPartitioner
from fedfacet.partitioners.synthetic import DirichletPartitioner as DirichletPartitioner
from fedfacet.partitioners.synthetic import IIDPartitioner as IIDPartitioner
from fedfacet.query import Query as Query
from fedfacet.runs.run import Run as Run
from fedfacet.runs.run import load_run as load_run
from fedfacet.runs.run import train as train
from fedfacet.selectors.base import ClientSelector as ClientSelector
from fedfacet.selectors.uniform import UniformSelector as UniformSelector
from fedfacet.types import Broadcast as Broadcast

__version__: str
