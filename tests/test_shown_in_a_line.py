"""What an interactive session shows of objects: public names, and one line with counts."""

import numpy as np
import torch

import fedfacet


def test_the_package_lists_public_names_only():
    assert not {"Any", "ast", "functools", "importlib", "Path"} & set(dir(fedfacet))
    assert {"federate", "load_run", "__version__"} <= set(dir(fedfacet))


def test_data_and_federations_are_one_line_with_counts():
    rng = np.random.default_rng(0)
    dataset = fedfacet.dataset_from_arrays(rng.normal(size=(200, 5)), rng.integers(0, 2, 200), rng.integers(0, 2, 200))
    data = fedfacet.deal(dataset, fedfacet.IIDPartitioner(num_clients=4))
    federation = fedfacet.federate(data, torch.nn.Linear(5, 2), cohort_size=2, rounds=3)
    assert repr(dataset) == "Dataset(160 training, 40 test samples, 2 classes, 2 attribute values)"
    assert repr(data) == (
        "FederatedData(4 clients with 148 samples, 12 validation samples, 40 test samples, 2 classes, 2 attribute values)"
    )
    assert data._repr_html_() == f"<code>{data!r}</code>"
    assert repr(federation) == "Federation(4 clients, 2 a round, 0 of 3 rounds)"
