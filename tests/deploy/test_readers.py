"""What sites read their clients' samples from, and what they say of files that are not as the data card has it."""

import json

import numpy as np
import pytest
import yaml
from PIL import Image

from fedfacet.commands import client
from fedfacet.deploy.card import Card
from fedfacet.deploy.files import made
from fedfacet.deploy.protocol import Message, pack, unpack
from fedfacet.deploy.settings import SiteSettings
from fedfacet.deploy.site import Site, refusing
from fedfacet.errors import ConfigError, FedFacetError

IMAGES = {
    **{"name": "x-rays", "class_names": ["healthy", "ill", "unsure"], "attribute_names": ["film", "digital"]},
    **{"input_shape": [3, 8, 8], "mean": [0.5] * 3, "std": [0.25] * 3},
}
ROWS = {
    **{"name": "people", "class_names": ["no", "yes"], "attribute_names": ["f", "m"]},
    **{"input_shape": [3], "input_dtype": "float32", "columns": {"age": {"mean": 50.0, "std": 10}, "colour": ["blue", "red"]}},
}


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)


@pytest.fixture
def adults(tmp_path, pixels):
    """The folder of a site that has a client's images in folders, those of digital ones in other folders than films."""
    for number, image in enumerate(pixels):
        file = tmp_path / "adults" / ("film", "digital")[number % 2] / ("ill", "healthy")[number // 3] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
    return tmp_path


@pytest.fixture
def site_of(tmp_path):
    """Return a function: card, what client.yaml says of the client -> the site, whose client.yaml lies in the same folder."""

    def make(card, **held):
        (tmp_path / "card.yaml").write_text(yaml.safe_dump(card))
        table = {"site": "a", "card": "card.yaml", "state": "state", "clients": {"adults": held}}
        (tmp_path / "client.yaml").write_text(yaml.safe_dump(table))
        return Site(SiteSettings.read(tmp_path / "client.yaml"))

    return make


FOLDERS = {"reader": "image_folder", "folder": "adults", "folders": ["attribute", "class"]}


def test_folders_and_a_table_of_images_are_what_arrays_are(site_of, adults, pixels):
    """The card numbers classes, though nobody here is unsure, and healthy comes after ill in no alphabet."""
    x, y, a = site_of(IMAGES, **FOLDERS, holdout=0.5).samples["adults"]
    order = [1, 3, 5, 0, 2, 4]  # digital before film, and by name within: healthy, ill
    order = sorted(order, key=lambda n: (("film", "digital")[n % 2], ("ill", "healthy")[n // 3], n))
    assert (x == pixels[order].transpose(0, 3, 1, 2)).all()
    assert y.tolist() == [1 - n // 3 for n in order]
    assert a.tolist() == [n % 2 for n in order]
    paths = [file.relative_to(adults / "adults").as_posix() for file in sorted((adults / "adults").rglob("*.png"))]
    (adults / "labels.csv").write_text("file,class,attribute\n" + "".join(f"{path},unsure,film\n" for path in paths))
    x, y, a = site_of(IMAGES, reader="image_folder", folder="adults", labels="labels.csv").samples["adults"]
    assert len(x) == 6
    assert (set(y), set(a)) == ({2}, {0})


def test_a_run_over_folders_is_that_over_arrays(adults, site_of, sites_of, deployed, rounds_of, tmp_path):
    x, y, a = site_of(IMAGES, **FOLDERS).samples["adults"]
    np.savez(adults / "adults.npz", x=x, y=y, a=a)
    roster = [{"name": f"client_{number}", "site": f"site_{number % 2}"} for number in range(4)]
    (adults / "roster.yaml").write_text(yaml.safe_dump({"clients": roster}))
    held = {"folders": {**FOLDERS, "folder": "../adults"}, "arrays": {"file": "../adults.npz"}}
    found = []
    for kind, files in held.items():
        for site in (0, 1):
            clients = {f"client_{number}": {**files, "holdout": 0.5} for number in (site, site + 2)}
            table = {"site": f"site_{site}", "card": "../card.yaml", "state": "state", "clients": clients, "device": "cpu"}
            (adults / f"site_{site}").mkdir(exist_ok=True)
            (adults / f"site_{site}" / "client.yaml").write_text(
                yaml.safe_dump({**table, "policy": {"queries": ["HoldoutCounts"]}})
            )
        (tmp_path / kind).mkdir()
        run = deployed(
            *("method=fedavg", "callbacks=[csv_log,federated_evaluate]"),
            **{"run_dir": tmp_path / kind, "transport": sites_of(adults), "folder": adults},
        )
        found.append(rounds_of(run))
    assert found[0] == found[1]
    assert b"holdout/acc_group/y2_a1" in found[0]


def test_rows_are_scaled_and_coded_as_the_card_says(site_of, tmp_path):
    (tmp_path / "people.csv").write_text("colour,name,age,class,attribute\nred,Ann,60,yes,f\nblue,Bob,4.5e1,no,m\n")
    x, y, a = site_of(ROWS, reader="csv", file="people.csv").samples["adults"]
    assert x.dtype == np.float32
    assert x.tolist() == [[1.0, 0.0, 1.0], [-0.5, 1.0, 0.0]]
    assert (y.tolist(), a.tolist()) == ([1, 0], [0, 1])


def test_rows_of_hugging_face(site_of, tmp_path, pixels):
    datasets = pytest.importorskip("datasets", reason="the extra `hf` is not installed")
    card = {"name": "n", "class_names": ["no", "yes"], "input_shape": [4], "input_dtype": "float32"}
    labels = datasets.ClassLabel(names=["yes", "no"])  # another order than the card's
    rows = datasets.Dataset.from_dict({"input": np.eye(4).tolist(), "label": [0, 1, 1, 0]}).cast_column("label", labels)
    rows.save_to_disk(str(tmp_path / "rows"))
    x, y, a = site_of(card, reader="hf", folder="rows", input="input").samples["adults"]
    assert (x.tolist(), y.tolist(), a.tolist()) == (np.eye(4).tolist(), [1, 0, 0, 1], [0] * 4)
    images = datasets.Dataset.from_dict({"image": [Image.fromarray(one) for one in pixels], "label": ["ill"] * 6})
    images.save_to_disk(str(tmp_path / "images"))
    x, y, _ = site_of({**IMAGES, "attribute_names": ["none"]}, reader="hf", folder="images").samples["adults"]
    assert (x == pixels.transpose(0, 3, 1, 2)).all()
    assert set(y) == {1}


CSV = {"reader": "csv", "file": "people.csv"}
HEAD = "age,colour,class,attribute\n"
HOSTILE = {
    "a class that the card lacks": (
        CSV,
        ROWS,
        HEAD + "1,red,maybe,f\n",
        "every `class` of .* to be one of the data card's no, yes",
    ),
    "an attribute value that it lacks": (CSV, ROWS, HEAD + "1,red,no,x\n", "every `attribute` of .* but got 'x'"),
    "an empty class": (CSV, ROWS, HEAD + "1,red,,f\n", "every `class` of .* but got ''"),
    "a value that it lacks": (CSV, ROWS, HEAD + "1,green,no,f\n", "Expected `colour` to be one of 'blue', 'red' in every line"),
    "no number": (
        CSV,
        ROWS,
        HEAD + "1,red,no,f\nold,red,no,f\n",
        "a number in every line of the column `age` .* 'old' in line 3",
    ),
    "NaN": (CSV, ROWS, HEAD + "nan,red,no,f\n", "a number in every line of the column `age`"),
    "too large a number": (CSV, ROWS, HEAD + "1e300,red,no,f\n", "numbers that float32 can hold in the column `age`"),
    "an input that is missing": (
        CSV,
        ROWS,
        "colour,class,attribute\nred,no,f\n",
        "a column `age` in .*, as the data card says",
    ),
    "no class": (
        CSV,
        ROWS,
        "age,colour,attribute\n1,red,f\n",
        "`target` to name a column of .*, but got 'class': choose one of",
    ),
    "no attribute": (CSV, ROWS, "age,colour,class\n1,red,no\n", "`attribute` to name a column of"),
    "a line too long": (CSV, ROWS, HEAD + "1,red,no,f,Ann\n", "Expected 4 entries in every line of .*, but got 5 in line 2"),
    "no rows": (CSV, ROWS, HEAD, "but it has no rows"),
    "no table": (CSV, ROWS, b"\xff\xfe\x00", "to be a csv file in UTF-8, but it is in UTF-16"),
    "a split": (
        CSV,
        ROWS,
        "age,colour,class,attribute,split\n1,red,no,f,test\n",
        "that all may train, but `split` says who tests",
    ),
    "another card": (CSV, IMAGES, HEAD + "1,red,no,f\n", "Expected a data card with `columns`"),
    "no file": ({"reader": "csv", "file": "."}, ROWS, HEAD, "but it cannot be read .*it is no file"),
    "another reader": (
        {**CSV, "reader": "pickle"},
        ROWS,
        "",
        "client adults to be one of npz, csv, image_folder, hf, but got 'pickle'",
    ),
    "an option of another reader": (
        {**CSV, "folders": []},
        ROWS,
        "",
        "to have the keys file, target, attribute, but it has `folders`",
    ),
    "no option": ({"reader": "csv"}, ROWS, "", "but it lacks `file`"),
    "an option of another type": ({**CSV, "file": 7}, ROWS, "", "to hold settings of `csv`, but got this"),
    "a reader of another type": ({**CSV, "reader": ["csv"]}, ROWS, "", "client adults to be one of npz, csv"),
    "a holdout of another type": ({**CSV, "holdout": "much"}, ROWS, "", "client adults to hold settings that go together"),
    "a table outside": (
        {**FOLDERS, "labels": "../labels.csv"},
        IMAGES,
        "",
        "`dataset.labels` to be a name inside `dataset.root`",
    ),
    "no folder": ({**FOLDERS, "folder": "none"}, IMAGES, "", "Expected a folder of images at"),
    "levels that are none": ({**FOLDERS, "folders": ["class"]}, IMAGES, "", "to lie in 1 folders"),
    "images of another card": (FOLDERS, ROWS, "", "Expected a data card of square RGB images"),
    "a folder of a class that it lacks": (FOLDERS, {**IMAGES, "class_names": ["ill"]}, "", "card's ill, but got 'healthy'"),
    "no data set of theirs": (
        {"reader": "hf", "folder": "adults"},
        IMAGES,
        "",
        "what `save_to_disk` wrote, but it cannot be read",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_does_not_fit_is_one_sentence_to_the_operator(what, site_of, adults, capsys):
    held, card, content, sentence = HOSTILE[what]
    (adults / "people.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FedFacetError, match=sentence) as refusal:
        site_of(card, **held)
    assert "\n" not in str(refusal.value)
    assert client.main(["check", f"config={adults / 'client.yaml'}"]) == 2
    assert "Traceback" not in (err := capsys.readouterr().err)
    assert err.startswith("error: Expected")


@pytest.mark.parametrize("damage", [b"", b"\x89PNG\r\n\x1a\n", b"GIF89a" + bytes(99)])
def test_the_server_is_not_told_the_name_of_a_damaged_file(damage, site_of, adults):
    (adults / "adults" / "film" / "ill" / "Jane Doe.png").write_bytes(damage)
    with pytest.raises(FedFacetError, match=r"Jane Doe\.png to be an image, but it cannot be read"):
        site_of(IMAGES, **FOLDERS)
    answer = refusing()(pack(Message("hello", "a" * 32, {})))
    assert unpack(answer, len(answer)).body["sentence"] == "it cannot be opened, as `client.py check` tells its operator"


def test_of_a_fault_at_work_the_server_is_told_the_kind_and_the_operator_all(site_of, adults, monkeypatch):
    site = site_of(IMAGES, **FOLDERS)
    monkeypatch.setattr(site, "_hello", lambda *_: (adults / "Jane Doe.png").read_bytes())
    answer = site.answer(pack(Message("hello", "a" * 32, {})))
    said = unpack(answer, len(answer)).body["sentence"]
    assert said == "FileNotFoundError, of which audit.jsonl tells its operator more"
    (line,) = (site.settings.state / "audit.jsonl").read_text().splitlines()
    assert "Jane Doe.png" in json.loads(line)["fault"]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ([], "has for 'columns' a mean"),
        ({"age": {"mean": 0, "std": 0}}, "has for 'age' a mean and a std above 0"),
        ({"age": {"mean": "x", "std": 1}}, "has for 'age' a mean"),
        ({"age": {"mean": float("nan"), "std": 1}}, "has for 'age' a mean"),
        ({"age": [1, 2, 3]}, "has for 'age' a mean"),
        ({"age": ["a", "b"]}, r"come to float32 inputs of shape \(2,\)"),
        ({"age": ["a", "b", "a"]}, "each value of a list once"),
    ],
)
def test_columns_of_a_card_that_are_none(columns, sentence):
    with pytest.raises(ConfigError, match=sentence):
        made(Card, {**ROWS, "columns": columns}, "card.yaml")


def test_vectors_that_are_not_finite_are_refused(site_of, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.full((2, 3), np.nan, np.float32), y=np.zeros(2, int), a=np.zeros(2, int))
    with pytest.raises(FedFacetError, match="inputs hold NaN or infinity"):
        site_of(ROWS, file="x.npz")
