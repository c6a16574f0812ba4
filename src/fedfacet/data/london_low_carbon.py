"""Electricity meters of London's households, as windows of a time series."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfacet import rng
from fedfacet.arguments import Whole, Within
from fedfacet.data.dataset import Dataset
from fedfacet.data.generated import write_lines
from fedfacet.data.reading import reading
from fedfacet.data.source import DatasetSource, located
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

HOUSEHOLD, TARIFF, TIME, USED = "LCLid", "stdorToU", "DateTime", "KWH/hh (per half hour)"
TARIFFS = ("Std", "ToU")
_MISSING = ("Null", "")
_STEP = np.timedelta64(30, "m")
_MOST_KWH = 1000.0

Readings = dict[str, tuple[str, dict[np.datetime64, float]]]


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Rows of ``length`` numbers of a series, cut when they are asked for; ``starts`` has the place of each one's first."""

    series: NDArray[np.float32]
    starts: NDArray[np.int64]
    length: int

    def __len__(self) -> int:
        return len(self.starts)

    def fetch(self, indices: NDArray[np.int64]) -> Tensor:
        """Return the windows at ``indices``, float32 of shape (B, length)."""
        return torch.from_numpy(self.series[self.starts[indices][:, None] + np.arange(self.length)])


@dataclass(eq=False, kw_only=True)
class LondonLowCarbon(DatasetSource):
    r"""Windows of half-hourly readings of a household, and the next reading as target; a regression.

    5,567 households of the Low Carbon London project, November 2011 to February 2014, 167 million readings. A window has
    ``length`` readings without a gap. Inputs, shape (length,), and targets, shape (N,), are float32 and standardised alike:

    .. math:: (x - \mu) / \sigma

    with mean and deviation of the readings that train, in kWh per half hour. ``partition.json`` has both. Of each household's
    windows the first train, the next ``val_fraction`` validate and the last ``test_fraction`` test; no reading is in windows of
    two parts. The attribute is the tariff: standard (``Std``) or time of use (``ToU``). ``partition=natural
    partition.label=household`` makes a client of each household.

    A model for it is ``model=mlp``, which then has one output, and its objective is a LightningModule of yours
    (docs/from_python.md, "Other tasks").

    Missing readings (``Null``) make gaps. Of two readings of one time the first counts. Readings outside full and half hours
    are left out.

    Source: UK Power Networks, SmartMeter Energy Consumption Data in London Households (Schofield et al., Low Carbon London,
    2015), CC BY 4.0. The thesis, table 5, lists it with clients by household.

    Deviation: in a federation the clients would have to agree on mean and standard deviation, and would learn them of each
    other.

    Args:
        root: folder that holds csv files in the project's layout, with the columns ``LCLid``, ``stdorToU``, ``DateTime`` and
            ``KWH/hh (per half hour)``; others are not read. A household may be in several files.
        length: readings of a window, 1 or larger; 48 are a day.
        stride: readings between the starts of two windows, 1 or larger.
        num_households: the first ones by their names; ``None`` for all.
        val_fraction: of each household's windows that validate, in (0, 1).
        test_fraction: of each household's windows that test, in (0, 1); with ``val_fraction`` less than 1.
    """

    root: str
    length: Annotated[int, Whole()] = 48
    stride: Annotated[int, Whole()] = 1
    num_households: Annotated[int | None, Whole(words="1 or larger, or null for all")] = None
    val_fraction: Annotated[float, Within("(0, 1)")] = 0.1
    test_fraction: Annotated[float, Within("(0, 1)")] = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.val_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"`dataset.val_fraction` and `dataset.test_fraction` are {self.val_fraction} and {self.test_fraction}, which "
                "leaves no windows to train on: lower one of them."
            )
        self.folder = located(self.root)

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write four households whose use follows the hour, in the real layout; see ``DatasetSource.generate``."""
        count = 20 * (self.length + self.stride) + 400
        times = np.datetime64("2013-01-01T00:00") + _STEP * np.arange(count)
        for household in range(4):
            draw = rng.stream(0, "generated-readings", household)
            used = 0.3 + 0.2 * np.sin(np.arange(count) * np.pi / 24) + draw.uniform(0, 0.05, count)
            stamps = (str(time).replace("T", " ") for time in times)
            rows = (
                f"MAC{household:06d},{TARIFFS[household % 2]},{stamp}:00.0000000, {value:.3f} "
                for stamp, value in zip(stamps, used, strict=True)
            )
            write_lines(self.folder / f"LCL-{household}.csv", [f"{HOUSEHOLD},{TARIFF},{TIME},{USED} ", *rows])

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the files and cut windows; see ``DatasetSource.load``."""
        files = sorted(self.folder.glob("*.csv"))
        if not files:
            raise DatasetNotFoundError(
                f"There are no csv files of Low Carbon London in {self.folder}: unpack them there, or give dataset.root=DIR "
                "(data/README.md says where they come from)."
            )
        found: Readings = {}
        for file in files:
            with reading(file, "a csv file of Low Carbon London", "restore it"):
                _read(file, found)
        names = sorted(found)[: self.num_households]
        series, starts, parts, owners = [], [], [], []
        offset = 0
        for number, name in enumerate(names):
            values = _series(found[name][1])
            own, part = self._windows(values)
            series.append(values)
            starts.append(offset + own)
            parts.append(part)
            owners.append(np.full(len(own), number))
            offset += len(values)
        start, part, household = np.concatenate(starts), np.concatenate(parts), np.concatenate(owners)
        train, val, test = (np.flatnonzero(part == number) for number in range(3))
        if not (len(train) and len(val) and len(test)):
            raise DatasetCorruptError(
                f"Households in {self.folder} ({len(names)}) have too few readings without a gap for windows of {self.length}: "
                "lower `dataset.length`."
            )
        whole = np.concatenate(series)
        read = np.zeros(len(whole), dtype=bool)
        read[(start[train][:, None] + np.arange(self.length + 1)).ravel()] = True
        mean, deviation = float(whole[read].mean()), float(whole[read].std()) or 1.0
        scaled = ((whole - mean) / deviation).astype(np.float32)
        tariffs = np.array([TARIFFS.index(found[name][0]) for name in names])
        return Dataset(
            Windows(scaled, start, self.length),
            np.zeros(len(start), dtype=np.int64),
            tariffs[household],
            train,
            test,
            val,
            ("kWh",),
            TARIFFS,
            columns={"household": household},
            targets=scaled[start + self.length],
            value_names={"household": names},
            inputs_read=f"kWh per half hour, less {mean:.6g}, over {deviation:.6g}",
        )

    def _windows(self, values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where a household's windows start, and the part of each: 0 trains, 1 validates, 2 tests."""
        if len(values) <= self.length:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        gaps = np.concatenate([[0], np.cumsum(np.isnan(values))])
        starts = np.arange(0, len(values) - self.length, self.stride)
        starts = starts[gaps[starts + self.length + 1] == gaps[starts]]
        cuts = (np.array([1 - self.val_fraction - self.test_fraction, 1 - self.test_fraction]) * len(starts)).round()
        part = np.searchsorted(cuts, np.arange(len(starts)), side="right")
        kept = np.ones(len(starts), dtype=bool)
        for number in (1, 2):  # leave out windows that share a reading with the part before
            if (part < number).any():
                kept &= (part != number) | (starts > starts[part < number].max() + self.length)
        return starts[kept], part[kept]


def _read(file: Path, found: Readings) -> None:
    """Add a file's readings; ``ValueError`` for what is not one."""
    with file.open(newline="", encoding="utf-8-sig") as opened:
        rows = csv.reader(opened)
        header = [name.strip() for name in next(rows, [])]
        if lacking := [name for name in (HOUSEHOLD, TARIFF, TIME, USED) if name not in header]:
            raise ValueError(f"line 1: no column {lacking[0]!r}")
        places = [header.index(name) for name in (HOUSEHOLD, TARIFF, TIME, USED)]
        for row in rows:
            if not row:
                continue
            if len(row) <= max(places):
                raise ValueError(f"line {rows.line_num}: {len(row)} entries")
            name, tariff, stamp, used = (row[place].strip() for place in places)
            if tariff not in TARIFFS:
                raise ValueError(f"line {rows.line_num}: tariff {tariff!r}")
            known, readings = found.setdefault(name, (tariff, {}))
            if known != tariff:
                raise ValueError(f"line {rows.line_num}: a second tariff of {name}")
            if used in _MISSING:
                continue
            value, time = float(used), np.datetime64(stamp[:19].replace(" ", "T"), "s")
            if not (math.isfinite(value) and 0 <= value < _MOST_KWH):
                raise ValueError(f"line {rows.line_num}: {used} kWh")
            readings.setdefault(time, value)


def _series(readings: dict[np.datetime64, float]) -> NDArray[np.float64]:
    """Return readings half an hour apart, NaN where one is missing."""
    times = np.array(list(readings), dtype="datetime64[s]")
    values = np.array(list(readings.values()), dtype=np.float64)
    places, rest = np.divmod(times.astype(np.int64), 1800)
    places, values = places[rest == 0], values[rest == 0]
    if not len(places):
        return np.empty(0)
    series = np.full(int(places.max() - places.min()) + 1, np.nan)
    series[places - places.min()] = values
    return series
