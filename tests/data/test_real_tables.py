"""Tables as programs of hospitals and offices write them: read right, with the names that they have."""

import json

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.preprocessing import StandardScaler

from fedfacet.analysis.page_tables import participation_table
from fedfacet.analysis.runs import Run
from fedfacet.build import build, load_data
from fedfacet.commands.describe_federations import run
from fedfacet.config import compose_job
from fedfacet.data.csv import Csv
from fedfacet.data.federated import deal
from fedfacet.data.frames import dataset_from_frame
from fedfacet.data.npz import Npz
from fedfacet.errors import ConfigError, DatasetCorruptError, FedFacetError
from fedfacet.metrics.estimation import read_triplets
from fedfacet.partitioners.natural import NaturalPartitioner
from fedfacet.partitioners.synthetic import IIDPartitioner
from fedfacet.runs.open_run import write_owners
from fedfacet.storage.run_files import rows_of

HEADER = ["id", "age", "größe", "smoker", "admitted", "hospital", "diagnosis"]


def person(n):
    kind = ["ja", "nein", "früher"][n % 3]
    return [str(9000 + n), str(20 + n * 7 % 60), f"{1.5 + n % 40 / 100}", kind, f"{1 + n % 28}.{1 + n % 12}.2020", f"h{n % 3}"]


PEOPLE = [[*person(n), "krank" if n % 2 else "gesund"] for n in range(120)]


def write(folder, rows=PEOPLE, *, separator=",", encoding="utf-8", decimal="."):
    lines = [separator.join(entry.replace(".", decimal) if i == 2 else entry for i, entry in enumerate(row)) for row in rows]
    (folder / "table.csv").write_bytes("\n".join([separator.join(HEADER), *lines]).encode(encoding))


def load(folder, **settings):
    return Csv(root=folder, **{"target": "diagnosis", "columns": ["hospital"], "drop": ["id"]} | settings).load()


def inputs(data):
    return data.inputs.fetch(np.arange(len(data.y)))


def test_how_a_program_exports_makes_no_difference(tmp_path, caplog):
    write(tmp_path)
    plain = load(tmp_path)
    assert plain.inputs_read == "age, größe numbers; admitted days; smoker 3 words"
    for encoding in ("cp1252", "utf-16"):
        write(tmp_path, separator=";", encoding=encoding, decimal=",")
        export = load(tmp_path)
        assert export.inputs_read == plain.inputs_read
        assert torch.equal(inputs(export), inputs(plain))
    assert "read as Windows-1252" in caplog.text
    write(tmp_path, encoding="iso8859-2", separator=";", decimal=",")
    assert load(tmp_path, encoding="iso8859-2").inputs_read == plain.inputs_read


def test_dates_are_days(tmp_path):
    write(tmp_path)
    days = [np.datetime64("2020-{1:0>2}-{0:0>2}".format(*row[4].split("."))).astype(int) for row in PEOPLE]
    data = load(tmp_path)
    expected = StandardScaler().fit(np.array(days)[data.train, None]).transform(np.array(days)[:, None])
    assert np.allclose(inputs(data)[:, -1:].numpy(), expected, atol=1e-5) or np.allclose(
        inputs(data)[:, 5:6].numpy(), expected, atol=1e-5
    )


def with_entries(column, entries, rows=PEOPLE):
    place = HEADER.index(column)
    return [[*row[:place], entries.get(n, row[place]), *row[place + 1 :]] for n, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("column", "entries", "settings", "said"),
    [
        (
            "admitted",
            {n: f"{1 + n % 12:02d}/{1 + n % 11:02d}/2020" for n in range(120)},
            {},
            "could be DD/MM/YYYY or MM/DD/YYYY",
        ),
        ("admitted", {7: "soon"}, {}, "dates such as DD.MM.YYYY in the column 'admitted' .* line 9 .* has 'soon'"),
        ("age", {7: ""}, {}, "value of 'age' .* line 9 .* `dataset.missing=drop` .`mean`, `median` or `indicator` fills"),
        ("age", {7: "alt"}, {"missing": "mean"}, "'age' .* line 9 has 'alt'"),
        ("age", {7: "alt"}, {"numbers": ["age"]}, "column `age` .* 'alt' in line 9"),
        ("diagnosis", {7: ""}, {"missing": "mean"}, "value of 'diagnosis' .* line 9"),
        ("age", {}, {"attribute": "age"}, r"'age' .* 60 numbers in 120 rows.*`dataset\.bins\.age=\[40,59\]`"),
        ("age", dict.fromkeys(range(120), ""), {"missing": "mean"}, "'age' .* no value in any row"),
        ("age", {}, {"bins": {"age": [60, 40]}}, r"`dataset\.bins\.age` to be ascending numbers, but got \[60, 40\]"),
        ("age", {7: "alt"}, {"bins": {"age": [40]}}, "column `age` .* 'alt' in line 9"),
        ("age", {}, {"bins": {"old": [40]}}, "`dataset.bins` to name columns .* 'old'"),
        ("age", {}, {"bins": {"age": [40]}, "words": ["age"]}, "'age' is in two"),
        ("age", {}, {"encoding": "latin-99"}, "`dataset.encoding`.*'latin-99'"),
    ],
)
def test_what_a_table_leaves_open_is_said(tmp_path, column, entries, settings, said):
    write(tmp_path, with_entries(column, entries))
    with pytest.raises(FedFacetError, match=said):
        load(tmp_path, **settings)


@pytest.mark.parametrize(
    ("content", "settings", "said"),
    [
        ("a,b;class,c\n1,2;x,y\n", {}, "could name 3 by ',' or 2 by ';': .*`dataset.separator=comma` or `semicolon`"),
        ("a;class\n" + "1,500;x\n2,500;y\n" * 4, {}, "'1,500'.*`dataset.decimal=comma`"),
        ("a;class\n" + "1,5;x\n2.5;y\n" * 4, {}, "line 2 has '1,5'"),
        ("größe;class\n1;x\n".encode() + b"\xf6;y\n", {}, "in UTF-8, but it is in another encoding: .*`dataset.encoding=NAME`"),
    ],
)
def test_what_a_file_leaves_open_is_asked(tmp_path, content, settings, said):
    (tmp_path / "table.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DatasetCorruptError, match=said):
        Csv(root=tmp_path, **settings).load()


def test_a_comma_in_a_name_is_no_separator(tmp_path):
    lines = [f"{n},5;{'xy'[n % 2]}" for n in range(20)]
    (tmp_path / "table.csv").write_text("\n".join(["weight, in kg;class", *lines, "7;x"]))
    assert Csv(root=tmp_path).load().inputs_read == "weight, in kg numbers"


def lacking(seed=0):
    draw = np.random.default_rng(seed)
    return with_entries(
        "smoker", {5: "NA"}, with_entries("age", dict.fromkeys(draw.choice(120, 30, replace=False).tolist(), ""))
    )


@pytest.mark.parametrize("missing", ["mean", "median", "indicator"])
def test_missing_inputs_are_filled_as_scikit_learn_fills_them(tmp_path, missing):
    rows = lacking()
    write(tmp_path, rows)
    data = load(tmp_path, missing=missing)
    ages = np.array([[float(row[1] or "nan")] for row in rows])
    filled = SimpleImputer(strategy="median" if missing == "median" else "mean").fit(ages[data.train])
    expected = StandardScaler().fit(filled.transform(ages[data.train])).transform(filled.transform(ages))
    if missing == "indicator":
        expected = np.hstack([expected, MissingIndicator().fit(ages).transform(ages)])
    assert np.allclose(inputs(data)[:, : expected.shape[1]], expected, atol=1e-5)
    smoker = inputs(data)[5, expected.shape[1] + 1 :].tolist()
    assert smoker[:3] == [0, 0, 0]
    assert (smoker[3] == 1) == (missing == "indicator")
    assert data.inputs_read.endswith(
        f"30 values of age, 1 value of smoker missing, filled by the {'mean and marked' if missing == 'indicator' else missing}"
    )


@pytest.mark.parametrize("missing", ["mean", "median", "indicator"])
def test_only_rows_that_clients_train_on_say_what_fills_a_gap(tmp_path, missing):
    rows = lacking()
    dealt = {"partitioner": NaturalPartitioner(label="hospital"), "local_holdout": 0.2, "held_out_clients": [1]}
    write(tmp_path, rows)
    loaded = load(tmp_path, missing=missing)
    data = deal(loaded, **dealt)
    train = data.partition.joined[0]
    others = np.setdiff1d(np.arange(120), train)
    assert {*data.val, *data.dataset.test, *np.concatenate(data.local_holdout)} <= {*others.tolist()}
    assert len(data.val)
    write(tmp_path, with_entries("age", {n: "99999" for n in others.tolist() if rows[n][1]}, rows))
    again = deal(load(tmp_path, missing=missing), **dealt)
    assert torch.equal(inputs(again.dataset)[train], inputs(data.dataset)[train])
    gaps = [n for n in range(120) if not rows[n][1]]
    assert torch.equal(inputs(again.dataset)[gaps], inputs(data.dataset)[gaps])
    assert not torch.equal(inputs(load(tmp_path, missing=missing))[train], inputs(loaded)[train]), "before clients have rows"


def test_a_column_that_no_training_row_has_is_refused(tmp_path):
    write(tmp_path)
    tested = int(load(tmp_path).test[0])
    write(tmp_path, with_entries("age", {n: "" for n in range(120) if n != tested}))
    with pytest.raises(DatasetCorruptError, match=r"'age' in some row .* trains.*`dataset\.drop=\[age\]`"):
        load(tmp_path, missing="mean")


def test_ranges_make_groups_clients_and_words(tmp_path):
    write(tmp_path)
    data = load(tmp_path, attribute="age", bins={"age": [40, 60]})
    assert data.attribute_names == ("age<40", "40-59", "60+")
    assert data.a.tolist() == [(int(row[1]) >= 40) + (int(row[1]) >= 60) for row in PEOPLE]
    assert load(tmp_path, bins={"größe": [1.6, 1.8]}).inputs_read == "age numbers; admitted days; größe 3, smoker 3 words"
    write(tmp_path, with_entries("age", {3: "?"}))
    dealt = deal(load(tmp_path, columns=["age", "hospital"], bins={"age": [40, 60]}), NaturalPartitioner(label="age"))
    assert dealt.client_names == ("age<40", "40-59", "60+")
    assert 3 not in dealt.partition.joined[0]


def test_ranges_are_given_on_the_command_line(tmp_path):
    write(tmp_path)
    told = [f"dataset.root={tmp_path}", "dataset.target=diagnosis", "dataset.columns=[hospital]", "dataset.drop=[id]"]
    config, _ = compose_job(
        "train", ["dataset=csv", *told, "dataset.attribute=age", "dataset.bins.age=[40,60]", "partition=natural"]
    )
    assert load_data(config).dataset.attribute_names == ("age<40", "40-59", "60+")


def test_a_column_that_counts_the_rows_is_named(tmp_path, caplog):
    write(tmp_path)
    load(tmp_path, drop=[])
    assert "column 'id' is read as numbers and counts the rows: leave it out with dataset.drop=[id]" in caplog.text
    caplog.clear()
    load(tmp_path, drop=[], numbers=["id"])
    assert "counts the rows" not in caplog.text


def test_clients_are_called_what_their_column_calls_them(tmp_path):
    write(tmp_path)
    data = load(tmp_path)
    whole = deal(data, NaturalPartitioner(label="hospital"))
    assert whole.client_names == ("h0", "h1", "h2")
    assert whole.pooled.client_names == ()
    some = deal(data, NaturalPartitioner(label="hospital"), held_out_clients=[1])
    assert (some.client_names, some.held_out_clients.names) == (("h0", "h2"), ("h1",))
    assert deal(data, IIDPartitioner(num_clients=3, seed=0)).client_names == ()
    assert deal(data, NaturalPartitioner(label="y")).client_names == ("gesund", "krank")
    np.savez(tmp_path / "arrays.npz", x=np.ones((8, 2)), y=np.arange(8) % 2, site=["b", "a"] * 4, number=np.arange(8) // 4)
    arrays = Npz(root=tmp_path, test_fraction=0.5).load()
    assert deal(arrays, NaturalPartitioner(label="site")).client_names == ("a", "b")
    assert deal(arrays, NaturalPartitioner(label="number")).client_names == ()


def test_a_run_folder_has_the_names(tmp_path):
    write(tmp_path)
    told = [f"dataset.root={tmp_path}", "dataset.target=diagnosis", "dataset.columns=[hospital]", "dataset.drop=[id]"]
    natural = ["partition=natural", "partition.label=hospital", "partition.held_out_clients=[1]"]
    config, _ = compose_job("train", ["dataset=csv", *told, *natural])
    write_owners(tmp_path, config, None)
    kept = json.loads((tmp_path / "partition.json").read_text())
    assert kept["client_names"] == ["h0", "h2"]
    assert kept["held_out_clients"]["names"] == ["h1"]
    assert kept["inputs"] == "age, größe numbers; admitted days; smoker 3 words"


def test_all_that_lists_clients_names_them(tmp_path, monkeypatch):
    write(tmp_path, [[*person(n)[:5], f"klinik {'bca'[n % 3]}", "krank" if n % 2 else "gesund"] for n in range(120)])
    told = [f"dataset.root={tmp_path}", "dataset.target=diagnosis", "dataset.columns=[hospital]", "dataset.drop=[id]"]
    config, _ = compose_job(
        "train",
        [
            *("dataset=csv", *told, "dataset.attribute=smoker", "partition=natural", "partition.label=hospital", "model=mlp"),
            *(
                "federation.rounds=2",
                "federation.cohort_size=3",
                "server_data=validation",
                "server_data.samples_per_cell=5",
                "devices=uniform",
                "selector=feddiverse",
            ),
            "callbacks=[default,contribution_index]",
        ],
    )
    labels = []
    monkeypatch.setattr(Axes, "set_xticks", lambda self, ticks, labels_=None, **_: labels.append(labels_))
    build(config, tmp_path).fit()
    pictures = [sorted(found) for found in labels if found is not None and "klinik a" in found]
    assert pictures == [["klinik a", "klinik b", "klinik c"]] * 2, "partition.png and selection.png"
    for file in ("disclosures.csv", "heterogeneity.csv", "contributions.csv", "devices.csv"):
        rows = rows_of(tmp_path / file)
        assert {row["client"]: row["name"] for row in rows} == {"0": "klinik a", "1": "klinik b", "2": "klinik c"}, file
    assert read_triplets(tmp_path).clients == (0, 1, 2)
    write_owners(tmp_path, config, None)
    run = Run(tmp_path, 0, {}, json.loads((tmp_path / "summary.json").read_text()))
    assert [line[0] for line in participation_table({"row": [run]}, {}).rows] == ["klinik a", "klinik b", "klinik c"]


def test_a_description_names_clients_and_says_how_columns_were_read(tmp_path):
    write(tmp_path)
    told = [f"dataset.root={tmp_path}", "dataset.target=diagnosis", "dataset.columns=[hospital]", "dataset.drop=[id]"]
    natural = ["partition=natural", "partition.label=hospital", f"paths.output_dir={tmp_path}"]
    said = run(["dataset=csv", *told, *natural])
    assert [client["name"] for client in said.data["clients"]] == ["h0", "h1", "h2"]
    tables = {table.caption: table for table in said.tables}
    assert [line[0] for line in tables["How each column was read"].rows] == [
        *("age, größe numbers", "admitted days", "smoker 3 words")
    ]
    assert [line[0] for table in tables.values() if table.columns[0] == "client" for line in table.rows] == ["h0", "h1", "h2"]


def test_a_frame_is_read_as_its_file_is(tmp_path):
    pandas = pytest.importorskip("pandas", reason="comes with the extra `hf`")
    write(tmp_path, lacking())
    of_file = load(tmp_path, missing="indicator")
    frame = pandas.read_csv(tmp_path / "table.csv", keep_default_na=True)
    frame["admitted"] = pandas.to_datetime(frame["admitted"], format="%d.%m.%Y")
    settings = {"columns": ["hospital"], "drop": ["id"], "missing": "indicator"}
    of_frame = dataset_from_frame(frame, "diagnosis", **settings)
    assert torch.equal(inputs(of_frame), inputs(of_file))
    assert of_frame.inputs_read == of_file.inputs_read
    assert deal(of_frame, NaturalPartitioner(label="hospital")).client_names == ("h0", "h1", "h2")
    frame["smoker"] = pandas.Categorical(frame["smoker"].fillna("ja"), ["nein", "früher", "ja"])
    assert dataset_from_frame(frame, "diagnosis", attribute="smoker", **settings).attribute_names == ("nein", "früher", "ja")
    frame.loc[7, "diagnosis"] = None
    with pytest.raises(DatasetCorruptError, match=r"value of 'diagnosis' .* row 7 of the frame"):
        dataset_from_frame(frame, "diagnosis", **settings)
    with pytest.raises(ConfigError, match=r"`dataset\.drop` to name columns of the frame, but got 'who'"):
        dataset_from_frame(frame, "diagnosis", drop=["who"])
    with pytest.raises(ConfigError, match=r"`dataset\.drop` to be a list of columns, but got 'id': write \[id\]"):
        dataset_from_frame(frame, "diagnosis", drop="id")
    with pytest.raises(DatasetCorruptError, match="the frame to hold samples, but it has no rows"):
        dataset_from_frame(frame.iloc[:0], "diagnosis")
    with pytest.raises(TypeError, match="a DataFrame of pandas, but got dict"):
        dataset_from_frame({"diagnosis": ["a", "b"]}, "diagnosis")


def test_durations_in_a_frame_are_days():
    pandas = pytest.importorskip("pandas", reason="comes with the extra `hf`")
    days = pandas.Series(range(40))
    frame = pandas.DataFrame({"stay": pandas.to_timedelta(days, unit="D"), "died": ["no", "yes"] * 20})
    as_numbers = dataset_from_frame(frame.assign(stay=days), "died")
    assert torch.equal(inputs(dataset_from_frame(frame, "died")), inputs(as_numbers))
