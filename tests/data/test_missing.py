"""Data that are missing: the sentence names whole paths, and its advice works when it is followed."""

import re
from pathlib import Path

import pytest

from fedfacet.build import load_data
from fedfacet.config import compose_job
from fedfacet.errors import DatasetNotFoundError

RECIPES = {
    "adult_doctorate": ["adult_gsc", "digits_gsc"],
    "adult_gsc": ["adult_gsc", "digits_gsc"],
    "celeba_gsc": ["adult_gsc"],
    "cifar100_participation": ["digits_gsc"],
    "cmnist_gsc": ["digits_gsc"],
    "compas_gsc": ["adult_gsc"],
    "covid_fl": ["fedld_pneumonia"],
    "fairface_gsc": ["adult_gsc"],
    "fedld_pneumonia": ["digits_gsc"],
    "femnist_submodels": ["mnist_writers_submodels"],
    "mnist_writers_submodels": ["digits_gsc"],
    "retina_split1": ["fedld_pneumonia_split1"],
    "retina_split2": ["fedld_pneumonia"],
    "retina_split3": ["fedld_pneumonia_split3"],
    "shakespeare": ["digits_gsc"],
    "spawrious_gsc": ["spawrious_gsc", "spawrious_gsc_synthetic", "digits_gsc"],
    "utkface_gsc": ["adult_gsc"],
    "waterbirds": ["waterbirds", "spawrious_gsc_synthetic", "digits_gsc"],
}
"""Per recipe, the recipes that the sentence names."""

WITHOUT_FILES = ["experiment=digits_gsc", "experiment=spawrious_gsc_synthetic"]


@pytest.mark.parametrize("experiment", RECIPES)
def test_the_sentence_says_where_and_what_to_do(experiment, tmp_path, monkeypatch, job_of):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDFACET_DATA", raising=False)
    with pytest.raises(DatasetNotFoundError) as caught:
        load_data(job := compose_job("train", [f"experiment={experiment}"])[0])
    sentence = str(caught.value)
    assert str(tmp_path / "data") in sentence, "the whole path"
    folder = Path(job.dataset.root).name
    assert re.search(rf"point FEDFACET_DATA at a folder that holds {folder}/", sentence)
    assert re.findall(r"experiment=(\w+)", sentence) == RECIPES[experiment]
    for followed in re.findall(r"experiment=\w+(?: dataset\.download=true)?", sentence):
        assert followed in WITHOUT_FILES or job_of(*followed.split()).dataset.download


@pytest.mark.parametrize("followed", WITHOUT_FILES)
def test_recipes_without_files_can_be_dealt(followed, tmp_path, monkeypatch, job_of):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDFACET_DATA", raising=False)
    assert load_data(job_of(followed, "debug=smoke")).partition.num_clients > 1  # drawing all takes a while


def test_contact_sheets_of_cifar100_come_with_their_converter(tmp_path):
    (tmp_path / "classes.csv").touch()
    config, _ = compose_job("train", ["experiment=cifar100_participation", f"dataset.root={tmp_path}"])
    with pytest.raises(DatasetNotFoundError, match=rf"cifar_sheets\.py {tmp_path} DIR.*participation\.md.*dataset\.root=DIR"):
        load_data(config)


def test_pneumonia_in_retinas_place_is_dealt_alike(tmp_path):
    """The stand-in of each split of Retina has its Dirichlet parameter."""
    for split in (1, 2, 3):
        config, _ = compose_job("train", [f"experiment=retina_split{split}", f"dataset.root={tmp_path}"])
        with pytest.raises(DatasetNotFoundError) as caught:
            load_data(config)
        stand_in = re.search(r"`(experiment=\w+) (dataset\.download=true)`", str(caught.value))
        alike, _ = compose_job("train", list(stand_in.groups()))
        assert alike.partition.alpha == {1: 100.0, 2: 1.0, 3: 0.5}[split]
