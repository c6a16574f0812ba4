"""Meters of Low Carbon London, on made-up files of the same layout."""

import numpy as np
import pytest

from fedfacet.data.london_low_carbon import LondonLowCarbon
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

HEADER = "LCLid,stdorToU,DateTime,KWH/hh (per half hour) ,Acorn,Acorn_grouped"


def line(household, place, used, tariff="Std"):
    time = np.datetime64("2012-10-12T00:30") + np.timedelta64(30 * place, "m")
    return f"{household},{tariff},{str(time).replace('T', ' ')}:00.0000000, {used} ,ACORN-A,Affluent"


def write(root, *lines, name="LCL.csv", header=HEADER):
    (root / name).write_text("\n".join([header, *lines]) + "\n")


def test_windows_follow_readings_without_a_gap(tmp_path):
    use = np.arange(40) / 10
    mine = [line("MAC000002", place, "Null" if place == 5 else use[place]) for place in range(40)]
    write(tmp_path, *mine[20:], mine[25], name="b.csv")  # of two readings of one time one counts
    write(tmp_path, *mine[:20], *(line("MAC000001", place, 1 + place % 2, "ToU") for place in range(20)), name="a.csv")
    dataset = LondonLowCarbon(root=str(tmp_path), length=2, val_fraction=0.2, test_fraction=0.2).load()
    mean, deviation = (float(word.strip(",")) for word in dataset.inputs_read.split()[-3::2])
    kwh = lambda values: np.round(np.asarray(values, dtype=np.float64) * deviation + mean, 3).tolist()  # noqa: E731
    own = dataset.columns["household"] == 1
    x, y = kwh(dataset.inputs.fetch(np.arange(len(dataset.y)))), kwh(dataset.targets)
    train = [number for number in dataset.train if own[number]]
    assert [x[train[0]], y[train[0]]] == [[0.0, 0.1], 0.2]
    assert [x[train[3]], y[train[3]]] == [[0.6, 0.7], 0.8]  # 0.3 to 0.5 are in windows with the gap
    assert (dataset.a[own] == 0).all()
    assert (dataset.a[~own] == 1).all()
    assert dataset.value_names["household"] == ["MAC000001", "MAC000002"]
    assert dataset.num_outputs == 1
    read = [{value for number in part if own[number] for value in (*x[number], y[number])} for part in
            (dataset.train, dataset.val, dataset.test)]  # fmt: skip
    assert all(read)
    assert not read[0] & read[1]
    assert not read[1] & read[2]
    readings = [value for part in (own, ~own) for number in dataset.train if part[number] for value in (*x[number], y[number])]
    assert min(readings) >= 0
    one = LondonLowCarbon(root=str(tmp_path), length=2, num_households=1, val_fraction=0.3, test_fraction=0.3).load()
    assert one.value_names["household"] == ["MAC000001"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([line("M", 0, "much")], "could not convert string to float"),
        ([line("M", 0, -1)], "line 2: -1 kWh"),
        ([line("M", 0, 1, "Free")], "line 2: tariff 'Free'"),
        ([line("M", 0, 1), line("M", 1, 1, "ToU")], "line 3: a second tariff of M"),
        (["M,Std"], "line 2: 2 entries"),
        ([line("M", 0, 1)], "have too few readings without a gap for windows of 48: lower `dataset.length`"),
    ],
)
def test_faults_are_said(lines, said, tmp_path):
    write(tmp_path, *lines)
    with pytest.raises(DatasetCorruptError, match=said):
        LondonLowCarbon(root=str(tmp_path)).load()


def test_another_table_and_none_are_said(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"no csv files of Low Carbon London in .*dataset\.root=DIR"):
        LondonLowCarbon(root=str(tmp_path)).load()
    write(tmp_path, header="LCLid,day")
    with pytest.raises(DatasetCorruptError, match="no column 'stdorToU'"):
        LondonLowCarbon(root=str(tmp_path)).load()
    with pytest.raises(ValueError, match="leaves no windows to train on"):
        LondonLowCarbon(root=str(tmp_path), val_fraction=0.5, test_fraction=0.5)
