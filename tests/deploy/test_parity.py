"""A deployed run is the simulated one, bit for bit, though the server has no sample and a site has its own alone.

Sites answer in this process; ``test_faults.py`` has one whose sites are processes.
"""

import pytest

from fedfacet import state
from fedfacet.clients.personal_memory import all_layers
from fedfacet.deploy.engine import KEPT
from fedfacet.deploy.memory import SiteDisk

CASES = {  # others are among the METHODS of test_holdout.py, whose tables are compared too
    "fedpac": ("method=fedpac",),
    "fedbn": ("method=fedbn", "model=resnet8"),
    "scaffold": ("method=scaffold",),
    "fednova": ("method=fednova", "selector=uniform", "local.keep_optimizer=true"),
    "probes": ("selector=probe_fairness", "aggregator=fedavg", "participation=stragglers"),
    "dropouts": ("method=fedavg", "participation=dropouts", "federation.cohort_size=6"),
    "lag": ("method=lag", "local=full_batch", "selector.smoothness.iterations=3"),
}


def kept_at_sites(federation, pilot):
    """Return what clients keep, from the sites' disks, of the versions that count."""
    run, kept = federation.engine.exchange.run, {}
    for client_id, token in federation.state.memory.items():
        assert list(token) == [KEPT], "the server has nothing but a round of a client's memory"
        site = federation.engine.registry.clients[client_id].site
        kept[client_id] = SiteDisk(pilot / site / "state").get(run, client_id, int(token[KEPT]))
    return kept


@pytest.mark.parametrize("case", CASES)
def test_a_deployed_run_is_the_simulated_one(case, simulated, deployed, rounds_of, sites_of, pilot, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here = simulated(*CASES[case], run_dir=tmp_path / "here")
    there = deployed(*CASES[case], run_dir=tmp_path / "there", transport=sites_of(pilot))
    assert rounds_of(there) == rounds_of(here)
    assert state.digest(there.state.model) == state.digest(here.state.model)
    assert there.state.disclosures == here.state.disclosures
    kept = kept_at_sites(there, pilot)
    assert kept.keys() == here.state.memory.keys()
    assert bool(kept) == (case in ("fedbn", "scaffold", "fednova"))
    assert {k: state.digest(own) for k, own in kept.items()} == {k: state.digest(own) for k, own in here.state.memory.items()}
    # The summary's model_digest, which counts clients' own layers.
    assert state.digest(all_layers(there.state.model, kept)) == state.digest(all_layers(here.state.model, here.state.memory))
