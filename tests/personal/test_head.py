import pytest
import torch
from torch import nn

from fedfacet.errors import ConfigError
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.personal import PersonalHead


def test_it_is_the_head_and_nothing_else():
    assert PersonalHead().names(SmallCNN(2, (3, 8, 8))) == {"head.weight", "head.bias"}


def test_it_is_found_in_an_objective_that_learns_more_than_its_model():
    objective = nn.Module()
    objective.model = SmallCNN(2, (3, 8, 8))
    objective.temperature = nn.Parameter(torch.ones(1))
    assert PersonalHead().names(objective) == {"model.head.weight", "model.head.bias"}


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))])
def test_a_model_without_one_is_refused(model):
    with pytest.raises(ConfigError, match="Expected a model whose classifier is called `head`"):
        PersonalHead().names(model)
