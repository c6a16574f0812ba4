"""The pilot's command: its operators answer what the recipe asks, and nothing else."""

import pytest
import yaml

from fedfacet.commands import client
from fedfacet.errors import ConfigError

EVALUATED = ("method=feddiverse", "callbacks=[default,federated_evaluate]", "partition.local_holdout=0.25")


@pytest.fixture
def pilot_of(tmp_path, capsys, base):
    """Return a function: overrides -> the folder of a pilot by the command, and what it has said."""
    common = [one for one in base if not one.startswith("callbacks")]

    def make(*overrides):
        assert client.main(["pilot", f"folder={tmp_path / 'pilot'}", "sites=2", *common, *overrides]) == 0
        return tmp_path / "pilot", capsys.readouterr().out

    return make


@pytest.mark.parametrize(
    ("overrides", "queries"),
    [
        (("method=fedavg",), {"NumSamples": "how many samples a client has"}),
        (("method=pow_d",), {"LocalLoss": "a loss of a model on its samples"}),
        (
            EVALUATED,
            {
                "EstimatedHeterogeneity": "class imbalance, attribute imbalance and spurious correlation",
                "HoldoutCounts": "how a model does on its samples of each class with each attribute value",
            },
        ),
    ],
)
def test_operators_answer_what_the_recipe_asks(overrides, queries, pilot_of):
    folder, said = pilot_of(*overrides)
    for site in ("site_0", "site_1"):
        policy = yaml.safe_load((folder / site / "client.yaml").read_text())["policy"]
        assert policy == {"queries": ["NumSamples", *(query for query in queries if query != "NumSamples")]}
    for query, told in queries.items():
        assert [line for line in said.splitlines() if line.startswith(f"  {query}, for ") and told in line]


def test_the_recipe_runs_and_another_one_is_refused(pilot_of, sites_of, deployed, tmp_path):
    folder, _ = pilot_of(*EVALUATED)
    recipe = ("method=feddiverse", "callbacks=[deployed,federated_evaluate]")
    deployed(*recipe, run_dir=tmp_path, transport=sites_of(folder), folder=folder).run_round()
    with pytest.raises(ConfigError, match="sites that answer `LocalLoss`, which selector=pow_d asks, but site_0 does not"):
        deployed("method=pow_d", run_dir=tmp_path, transport=sites_of(folder), folder=folder)
