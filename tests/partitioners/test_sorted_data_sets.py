"""Data sets come sorted, by class and within a class by attribute; neither order may show in who owns what."""

import numpy as np
import pytest

from fedfacet.partitioners.synthetic import ClassesPerClientPartitioner, DirichletPartitioner, IIDPartitioner, SampledSharder

PARTITIONERS = {
    "classes_per_client": ClassesPerClientPartitioner(num_clients=20, classes_per_client=3),
    "sampled_sharder": SampledSharder(num_clients=20, max_classes=6),
    "dirichlet": DirichletPartitioner(num_clients=20),
    "iid": IIDPartitioner(num_clients=20),
}


@pytest.mark.parametrize("name", PARTITIONERS)
def test_an_attribute_that_classes_are_sorted_by_does_not_leak_into_clients(name):
    """Of every class, 60 % have attribute 0 and come first; so has every client's share of it, up to sampling."""
    y = np.repeat(np.arange(6), 1000)
    a = np.tile(np.repeat([0, 1], [600, 400]), 6)
    clients = PARTITIONERS[name].partition(y, a).indices
    for client in clients:
        for label in np.unique(y[client]):
            held = a[client[y[client] == label]]
            deviation = np.sqrt(0.6 * 0.4 / len(held))
            assert abs((held == 0).mean() - 0.6) < 5 * deviation


@pytest.mark.parametrize("name", PARTITIONERS)
def test_a_sorted_data_set_is_dealt_like_a_shuffled_one(name):
    """How many samples of a class a client gets does not hang on where they stand."""
    y = np.repeat(np.arange(6), 100)
    shuffled = np.random.default_rng(0).permutation(y)
    sizes = [
        [[int((labels[client] == label).sum()) for label in range(6)] for client in clients]
        for labels in (y, shuffled)
        for clients in (PARTITIONERS[name].partition(labels, 0 * labels).indices,)
    ]
    if name != "iid":  # which looks at no labels
        assert sizes[0] == sizes[1]
    assert [sum(client) for client in sizes[0]] == [sum(client) for client in sizes[1]]
