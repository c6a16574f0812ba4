"""Data of one's own: folders of images, tables, arrays, Hugging Face's format; held against torchvision and scikit-learn."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, ExifTags, Image
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torchvision.datasets import ImageFolder as TorchvisionFolder

from fedfacet.data.csv import Csv
from fedfacet.data.hf import HuggingFace
from fedfacet.data.image_folder import ImageFolder
from fedfacet.data.npz import Npz
from fedfacet.errors import ConfigError, DatasetCorruptError, DatasetNotFoundError


def write_images(root, layout):
    """Write images of one colour, a number of them per path."""
    shade = 0
    for place, number in layout.items():
        for index in range(number):
            file = root / place / f"{index}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (5, 7), (shade := shade + 1, 0, 0)).save(file)


class TestImageFolder:
    def test_it_reads_what_torchvision_reads(self, tmp_path):
        write_images(tmp_path / "pets", {"cat": 3, "dog": 5, "10": 2})
        theirs = TorchvisionFolder(str(tmp_path / "pets"))
        ours = ImageFolder(root=tmp_path, folder="pets", image_size=4).load()
        assert ours.class_names == tuple(theirs.classes)
        assert ours.y.tolist() == theirs.targets
        shades = ours.inputs.fetch(np.arange(10))[:, 0, 0, 0].tolist()
        assert shades == [np.asarray(image)[0, 0, 0] for image, _ in theirs]
        assert np.bincount(ours.y[ours.test]).tolist() == [1, 1, 1]
        assert not set(ours.train) & set(ours.test)

    def test_levels_say_split_attribute_and_clients(self, tmp_path):
        levels = {
            f"{split}/h{h}/{pet}/{light}": 2
            for split in ("train", "val", "test")
            for h in (2, 10)
            for pet in "cd"
            for light in "ni"
        }
        write_images(tmp_path / "images", levels)
        (tmp_path / "images" / ".trash").mkdir()
        (tmp_path / "images" / ".trash" / "x.png").touch()
        data = ImageFolder(root=tmp_path, folders=["split", "hospital", "class", "light"], attribute="light").load()
        assert (data.class_names, data.attribute_names) == (("c", "d"), ("i", "n"))
        assert [len(part) for part in (data.train, data.val, data.test)] == [16, 16, 16]
        assert set(data.columns) == {"hospital", "light"}
        assert np.bincount(data.columns["hospital"]).tolist() == [24, 24]

    def test_a_table_says_it_instead(self, tmp_path):
        write_images(tmp_path / "images", {"": 4})
        rows = [
            ("2.png", "old", "x", "train"),
            ("0.png", "new", "", "test"),
            ("3.png", "new", "y", "train"),
            ("1.png", "old", "y", "test"),
        ]
        (tmp_path / "said.csv").write_text("path,age,owner,split\n" + "".join(",".join(row) + "\n" for row in rows))
        data = ImageFolder(root=tmp_path, labels="said.csv", file="path", target="age", image_size=2).load()
        assert data.inputs.fetch(np.arange(4))[:, 0, 0, 0].tolist() == [3, 1, 4, 2]
        assert data.y.tolist() == [1, 0, 0, 1]
        assert data.test.tolist() == [1, 3]
        assert data.columns["owner"].tolist() == [0, -1, 1, 1], "an empty entry belongs to nobody"

    def test_a_table_without_the_class_leaves_that_to_the_folders(self, tmp_path):
        write_images(tmp_path / "images", {"cat": 2, "dog": 2})
        (tmp_path / "said.csv").write_text("file,light\ndog/1.png,night\ncat/0.png,day\ndog/0.png,day\ncat/1.png,day\n")
        said = {"labels": "said.csv", "attribute": "light", "test_fraction": 0.5}
        with pytest.raises(DatasetCorruptError, match=r"line 2 of \S+said\.csv is the only one of 'dog', 'night'"):
            ImageFolder(root=tmp_path, **said).load()
        (tmp_path / "said.csv").write_text("file,light\ndog/1.png,day\ncat/0.png,night\ndog/0.png,day\ncat/1.png,night\n")
        data = ImageFolder(root=tmp_path, **said).load()
        assert (data.class_names, data.attribute_names) == (("cat", "dog"), ("day", "night"))
        assert (data.y.tolist(), data.a.tolist()) == ([1, 0, 1, 0], [0, 1, 0, 1])
        (tmp_path / "images" / "loose.png").write_bytes((tmp_path / "images" / "cat" / "0.png").read_bytes())
        (tmp_path / "said.csv").write_text("file,light\ndog/1.png,day\nloose.png,day\n")
        with pytest.raises(DatasetCorruptError, match=r"loose\.png lies in 0"):
            ImageFolder(root=tmp_path, **said).load()
        (tmp_path / "said.csv").write_text("file,light\nloose.png,day\n")
        with pytest.raises(ConfigError, match=r"`dataset\.target` to name a column of \S+said\.csv"):
            ImageFolder(root=tmp_path, **said).load()

    @pytest.mark.parametrize(
        ("layout", "settings", "said"),
        [
            ({"a": 2, "b/deep": 2}, {}, r"in 1 folders.*class.*b/deep/0\.png lies in 2"),
            ({}, {}, "there are none that end in"),
            ({"a": 2}, {"labels": "no.csv"}, r"no\.csv to be a table of labels"),
            ({"train/a": 2, "test/a": 1, "other/a": 1}, {"folders": ["split", "class"]}, "train, val or test.*'other'"),
            ({"train/a": 2}, {"folders": ["split", "class"]}, "gives 2 and 0"),
        ],
    )
    def test_what_does_not_fit_is_said(self, tmp_path, layout, settings, said):
        (tmp_path / "images").mkdir()
        write_images(tmp_path / "images", layout)
        with pytest.raises(DatasetCorruptError, match=said):
            ImageFolder(root=tmp_path, **settings).load()

    def test_a_damaged_image_is_named(self, tmp_path):
        write_images(tmp_path / "images", {"a": 3})
        (tmp_path / "images" / "a" / "1.png").write_bytes(b"no image")
        with pytest.raises(DatasetCorruptError, match=r"1\.png to be an image.*replace or delete"):
            ImageFolder(root=tmp_path).load()

    def test_settings_that_name_nothing_are_refused(self, tmp_path):
        write_images(tmp_path / "images", {"a": 3})
        with pytest.raises(ConfigError, match=r"`dataset.folders`.*'class' among them.*\[hospital\]"):
            ImageFolder(root=tmp_path, folders=["hospital"])
        with pytest.raises(ConfigError, match=r"`dataset.attribute` to name a column.*'sex'.*choose one of class"):
            ImageFolder(root=tmp_path, attribute="sex").load()
        with pytest.raises(ConfigError, match=rf"give `dataset.root={tmp_path} dataset.folder=images`"):
            ImageFolder(root="data", folder=str(tmp_path / "images"))
        with pytest.raises(DatasetNotFoundError, match=r"dataset\.root=DIR dataset\.folder=NAME"):
            ImageFolder(root=tmp_path, folder="elsewhere").load()


def person(n):
    measured = {"id": f"p{n}", "age": str(20 + n * n), "income": f"{n / 3:.3e}"}
    return measured | {"job": "abc"[n % 3], "sick": "yn"[n % 2], "sex": "fm"[n // 2 % 2]}


ROWS = [person(n) for n in range(24)]


def write_rows(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


class TestCsv:
    def test_numbers_are_standardised_and_words_become_columns(self, tmp_path):
        write_rows(tmp_path / "table.csv", [row | {"job": row["job"].replace("c", "")} for row in ROWS])
        data = Csv(root=tmp_path, target="sick", attribute="sex", columns=["job"], drop=["id"], test_fraction=0.5).load()
        numbers = np.array([[float(row["age"]), float(row["income"])] for row in ROWS])
        expected = StandardScaler().fit(numbers[data.train]).transform(numbers)
        assert np.allclose(data.inputs.fetch(np.arange(24)), expected, atol=1e-6)
        assert set(data.columns) == {"job", "sex"}
        assert data.columns["job"].tolist() == [-1 if n % 3 == 2 else n % 3 for n in range(24)]
        write_rows(tmp_path / "table.csv", ROWS)
        whole = Csv(root=tmp_path, target="sick", attribute="sex", drop=["id"], test_fraction=0.5).load()
        words = OneHotEncoder(sparse_output=False).fit_transform([[row["job"]] for row in ROWS])
        assert np.allclose(whole.inputs.fetch(np.arange(24)), np.hstack([expected, words]), atol=1e-6)
        assert np.bincount(2 * whole.y[whole.test] + whole.a[whole.test]).tolist() == [3, 3, 3, 3]

    def test_a_split_and_an_attribute_are_found_by_their_names(self, tmp_path):
        rows = [
            {"x": str(n), "class": str(n % 11), "attribute": "ab"[n % 2], "split": ("train", "Test")[n > 21]} for n in range(44)
        ]
        write_rows(tmp_path / "mine.csv", rows)
        data = Csv(root=tmp_path, file="mine.csv").load()
        assert data.class_names[-1] == "10", "whole numbers by size"
        assert data.test.tolist() == list(range(22, 44))
        assert data.attribute_names == ("a", "b")
        assert data.val is None

    @pytest.mark.parametrize(
        ("change", "settings", "error", "said"),
        [
            ({"job": "7"}, {}, DatasetCorruptError, "numbers or words in .* 'job' .* 1 of 24 .* line 5 has '7'"),
            ({"job": "7"}, {"words": ["job"]}, None, None),
            ({"age": "x"}, {}, DatasetCorruptError, "'age' .* 23 of 24 .* line 5 has 'x'.*words=.age.*drop=.age"),
            ({"age": "?"}, {}, DatasetCorruptError, "value of 'age' .* line 5 .* '\\?'.*`dataset.missing=drop`"),
            ({"sick": ""}, {}, DatasetCorruptError, "value of 'sick' .* line 5 "),
            ({}, {"target": "ill"}, ConfigError, "`dataset.target`.*'ill'.*choose one of age, income, job, sick, sex"),
            ({}, {"columns": ["who"]}, ConfigError, "`dataset.columns`.*'who'"),
            ({}, {"drop": ["id", "age", "income", "job"]}, ConfigError, "columns that are inputs"),
            ({}, {"words": ["sex"]}, ConfigError, "`dataset.words` .* 'sex' is none"),
            ({}, {"columns": ["id"]}, ConfigError, "`dataset.drop` .* 'id'"),
            ({}, {"target": "sex"}, ConfigError, "different columns .* 'sex', 'sex'"),
            ({"age": "1e999"}, {}, DatasetCorruptError, "float32 can hold in the column `age`.*'1e999' in line 5"),
        ],
    )
    def test_faults_are_said(self, tmp_path, change, settings, error, said):
        write_rows(tmp_path / "table.csv", [row | (change if n == 3 else {}) for n, row in enumerate(ROWS)])
        source = Csv(root=tmp_path, **{"target": "sick", "attribute": "sex", "drop": ["id"], **settings})
        if error is None:
            source.load()
            return
        with pytest.raises(error, match=said):
            source.load()

    def test_names_of_people_are_no_input(self, tmp_path):
        rows = [{"name": f"person {n}", "x": str(n), "class": "ab"[n % 2]} for n in range(200)]
        write_rows(tmp_path / "table.csv", rows)
        with pytest.raises(
            DatasetCorruptError, match=r"'name' .*it has 200 words.*'person 0' in line 2.*`dataset.drop=\[name\]`"
        ):
            Csv(root=tmp_path).load()

    def test_a_header_with_a_name_twice_is_refused(self, tmp_path):
        (tmp_path / "table.csv").write_text("x,x,class\n1,2,a\n")
        with pytest.raises(DatasetCorruptError, match="name every column, each once, but got 'x, x, class'"):
            Csv(root=tmp_path).load()

    def test_a_group_of_one_row_cannot_be_split(self, tmp_path):
        write_rows(tmp_path / "table.csv", [{"x": "1", "class": "a"}, {"x": "2", "class": "a"}, {"x": "3", "class": "b"}])
        with pytest.raises(DatasetCorruptError, match=r"at least two samples of every \(class, attribute\) group.*line 4 "):
            Csv(root=tmp_path).load()


class TestNpz:
    def test_arrays_are_taken_as_they_are(self, tmp_path):
        x, y = np.arange(24, dtype=np.float32).reshape(8, 3), np.arange(8) % 2
        np.savez(
            tmp_path / "arrays.npz",
            x=x[:6],
            y=y[:6],
            x_test=x[6:],
            y_test=y[6:],
            site=np.arange(8) // 3,
            class_names=["no", "yes"],
        )
        data = Npz(root=tmp_path).load()
        assert torch.equal(data.inputs.fetch(np.arange(8)), torch.from_numpy(x))
        assert (data.train.tolist(), data.test.tolist()) == ([0, 1, 2, 3, 4, 5], [6, 7])
        assert data.class_names == ("no", "yes")
        assert data.columns["site"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2]

    @pytest.mark.parametrize(
        ("arrays", "said"),
        [
            ({"x": np.ones((4, 2))}, "y is not among x"),
            ({"x": np.ones((4, 2)), "y": np.array([0, 1, 0, -1.0])}, "whole numbers"),
            ({"x": np.ones((4, 2)), "y": np.arange(4) % 2, "site": np.arange(3)}, r"columns\['site'\]"),
            ({"x": np.array([object()] * 4), "y": np.arange(4) % 2}, "cannot be read"),
            (
                {"x": np.ones((4, 2)), "y": np.arange(4) % 2, "x_test": np.ones((2, 2))},
                "x_test and y_test .* but it has x_test",
            ),
            ({"x": np.ones((4, 2)), "y": np.arange(4) % 2, "y_test": [0, 1], "a_test": [0, 1]}, "but it has y_test, a_test"),
            ({"x": np.ones((4, 2)), "y": np.array(["no", "yes"] * 2)}, "`y` .* turn words into numbers"),
        ],
    )
    def test_faults_are_said(self, tmp_path, arrays, said):
        np.savez(tmp_path / "arrays.npz", **arrays)
        with pytest.raises(DatasetCorruptError, match=said):
            Npz(root=tmp_path).load()

    def test_a_column_may_have_words(self, tmp_path):
        np.savez(tmp_path / "arrays.npz", x=np.ones((4, 2)), y=np.arange(4) // 2, hospital=["north", "east", "north", "west"])
        assert Npz(root=tmp_path).load().columns["hospital"].tolist() == [1, 0, 1, 2]

    def test_a_missing_file_is_said(self, tmp_path):
        with pytest.raises(DatasetNotFoundError, match=r"numpy\.savez"):
            Npz(root=tmp_path).load()


datasets = pytest.importorskip("datasets", reason="the extra `hf` is not installed")


def written(folder, rows, **splits):
    """Write rows as `save_to_disk` does; given splits, a dict of them."""
    part = datasets.Dataset.from_dict(*rows)
    (datasets.DatasetDict({name: part.select(range(size)) for name, size in splits.items()}) if splits else part).save_to_disk(
        str(folder)
    )


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n"


class TestHuggingFace:
    def test_images_splits_and_class_labels(self, tmp_path):
        features = datasets.Features(
            image=datasets.Image(), label=datasets.ClassLabel(names=["zebra", "ant"]), who=datasets.Value("string")
        )
        images = [Image.new("L", (6, 5), shade) for shade in range(8)]
        rows = {"image": images, "label": [0, 1] * 4, "who": ["ann", None, "bob", "ann"] * 2}
        written(tmp_path / "dataset", (rows, features), train=8, validation=4, test=6)
        data = HuggingFace(root=tmp_path, columns=["who"], image_size=4).load()
        assert data.class_names == ("zebra", "ant"), "in the order of the class labels"
        assert [len(part) for part in (data.train, data.val, data.test)] == [8, 4, 6]
        assert data.inputs.fetch(np.array([3, 9]))[:, :, 0, 0].tolist() == [[3, 3, 3], [1, 1, 1]]
        assert data.columns["who"][:4].tolist() == [0, -1, 1, 0]

    def test_an_image_is_turned_as_its_camera_was(self, tmp_path):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = 3  # upside down
        picture = Image.new("RGB", (4, 4))
        picture.paste((240, 240, 240), (0, 0, 4, 2))
        picture.save(tmp_path / "x.png", exif=exif)
        features = datasets.Features(image=datasets.Image(), label=datasets.Value("string"))
        rows = {"image": [str(tmp_path / "x.png")] * 8, "label": ["a", "b"] * 4}
        written(tmp_path / "dataset", (rows, features))
        data = HuggingFace(root=tmp_path, image_size=4).load()
        assert data.inputs.fetch(np.array([0]))[0, 0, :, 0].tolist() == [0, 0, 240, 240]

    @pytest.mark.parametrize(
        "held",
        [{"path": "http://localhost:9/x.png"}, {"bytes": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n"}],
    )
    def test_a_row_reaches_no_host_and_starts_no_program(self, tmp_path, monkeypatch, held):
        left = []
        for way in ("socket.getaddrinfo", "subprocess.Popen"):
            monkeypatch.setattr(way, lambda *told, **_: left.append(told) or pytest.fail(f"{told}"))
        monkeypatch.setattr(EpsImagePlugin, "gs_binary", "gs")
        rows = {"image": [{"bytes": None, "path": None} | held] * 8, "label": ["a", "b"] * 4}
        image = {name: datasets.Value(kind) for name, kind in (("bytes", "binary"), ("path", "string"))}
        written(tmp_path / "dataset", (rows, datasets.Features(image=image, label=datasets.Value("string"))))
        told = tmp_path / "dataset" / "dataset_info.json"  # as somebody forges it: `datasets` would fetch the image to write it
        info = json.loads(told.read_text())
        info["features"]["image"] = {"_type": "Image"}
        told.write_text(json.dumps(info))
        data = HuggingFace(root=tmp_path, image_size=4).load()
        with pytest.raises(DatasetCorruptError, match="Expected an image in row 0 of the column 'image'"):
            data.inputs.fetch(np.array([0]))
        assert not left

    def test_numbers_without_a_test(self, tmp_path):
        x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
        written(tmp_path / "dataset", ({"x": x.tolist(), "label": [n % 2 for n in range(20)]}, None))
        data = HuggingFace(root=tmp_path, input="x", test_fraction=0.3).load()
        assert np.allclose(data.inputs.fetch(np.arange(20)), x)
        assert np.bincount(data.y[data.test]).tolist() == [3, 3]

    def test_files_that_load_dataset_reads(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
        folder = tmp_path / "files"
        folder.mkdir()
        lines = "\n".join(f'{{"x": [{n}, 1], "label": "{"ab"[n % 2]}"}}' for n in range(10))
        (folder / "train.jsonl").write_text(lines)
        (folder / "test.jsonl").write_text(lines)
        data = HuggingFace(root=tmp_path, name=str(folder), input="x").load()
        assert (len(data.train), len(data.test), data.class_names) == (10, 10, ("a", "b"))

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            (
                {"input": "text"},
                r"'text' of .* has a string a sample, not images or numbers in rows.*: give `dataset\.tokenizer`",
            ),
            ({"input": "y"}, "'y' is none: choose among text, label"),
        ],
    )
    def test_faults_are_said(self, tmp_path, settings, said):
        written(tmp_path / "dataset", ({"text": ["one", "two"] * 4, "label": [0, 1] * 4}, None))
        with pytest.raises(ConfigError, match=said):
            HuggingFace(root=tmp_path, **settings).load()

    @pytest.mark.parametrize("setting", [{"target": "image"}, {"attribute": "image"}, {"columns": ["image"]}])
    def test_images_are_no_labels(self, tmp_path, setting):
        features = datasets.Features(image=datasets.Image(), label=datasets.Value("int64"))
        written(tmp_path / "dataset", ({"image": [Image.new("L", (6, 5))] * 4, "label": [0, 1] * 2}, features))
        with pytest.raises(ConfigError, match=r"'image' .* words or whole numbers, .* choose another column"):
            HuggingFace(root=tmp_path, **setting).load()

    def test_what_is_not_there_is_said(self, tmp_path, monkeypatch):
        with pytest.raises(DatasetNotFoundError, match="save_to_disk"):
            HuggingFace(root=tmp_path).load()
        (tmp_path / "dataset").mkdir()
        with pytest.raises(DatasetCorruptError, match="write it again"):
            HuggingFace(root=tmp_path).load()

    def test_without_download_a_name_is_read_from_the_cache_and_the_hub_is_not_asked(self, tmp_path, monkeypatch):
        asked = []
        monkeypatch.setattr("socket.getaddrinfo", lambda *address, **_: asked.append(address) or [])
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
        (tmp_path / "nothing").mkdir()
        lines = "\n".join(f'{{"x": [{n}, 1], "label": "{"ab"[n % 2]}"}}' for n in range(10))
        (tmp_path / "nothing" / "train.jsonl").write_text(lines)
        with pytest.raises(DatasetNotFoundError, match=r"dataset\.download=true"):
            HuggingFace(root=tmp_path, name="nobody/nothing", input="x").load()
        datasets.load_dataset(str(tmp_path / "nothing"), cache_dir=str(tmp_path / "cache"))
        (cached,) = (tmp_path / "cache").glob("*/default*")
        (tmp_path / "cache" / "nobody___nothing").mkdir()
        cached.rename(tmp_path / "cache" / "nobody___nothing" / "default")
        assert len(HuggingFace(root=tmp_path, name="nobody/nothing", input="x").load().y) == 10
        assert asked == []
        assert not datasets.config.HF_HUB_OFFLINE, "the process may ask it again"
