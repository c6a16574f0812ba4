"""ACS Employment: who has work, in the American Community Survey, state by state."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Choice, Whole
from fedfacet.data.dataset import Dataset
from fedfacet.data.generated import shuffled, write_lines
from fedfacet.data.labels import split_groups
from fedfacet.data.source import DatasetSource, located
from fedfacet.data.tables import group_counts, one_hot, read_table, standardised, vectors
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

URL = "https://www2.census.gov/programs-surveys/acs/data/pums"
_STATES = (
    "AL01 AK02 AZ04 AR05 CA06 CO08 CT09 DE10 FL12 GA13 HI15 ID16 IL17 IN18 IA19 KS20 KY21 LA22 ME23 MD24 MA25 MI26 MN27 MS28 "
    "MO29 MT30 NE31 NV32 NH33 NJ34 NM35 NY36 NC37 ND38 OH39 OK40 OR41 PA42 RI44 SC45 SD46 TN47 TX48 UT49 VT50 VA51 WA53 WV54 "
    "WI55 WY56 PR72"
)
STATES = {state[:2]: int(state[2:]) for state in _STATES.split()}
"""The census' number of each state, by its letters."""

CODES = {
    "SCHL": range(1, 25),  # schooling
    "MAR": range(1, 6),  # marital status
    "RELP": range(18),  # relationship, RELSHIPP from 2019 on
    "DIS": range(1, 3),  # disability
    "ESP": range(1, 9),  # employment of parents
    "CIT": range(1, 6),  # citizenship
    "MIG": range(1, 4),  # moved within a year
    "MIL": range(1, 5),  # military service
    "ANC": range(1, 9),  # ancestry; 5 to 7 are not in use
    "NATIVITY": range(1, 3),
    "DEAR": range(1, 3),  # difficulty in hearing
    "DEYE": range(1, 3),  # in seeing
    "DREM": range(1, 3),  # in remembering
    "SEX": range(1, 3),
    "RAC1P": range(1, 10),  # race
}
"""The categories that are inputs, each as the census numbers it."""

RACES = (
    "White",
    "Black",
    "American Indian",
    "Alaska Native",
    "American Indian or Alaska Native, unspecified",
    "Asian",
    "Native Hawaiian or Pacific Islander",
    "Other",
    "Two or more",
)
SEXES = ("Female", "Male")
CLASSES = ("not employed", "employed")
_SENSITIVE = ("SEX", "RAC1P")
_YOUNGEST, _OLDEST = 17, 89
_TEST = 0.2


@dataclass(eq=False, kw_only=True)
class ACSEmployment(DatasetSource):
    """People of 17 to 89 in the American Community Survey, y = employed (ESR = 1), attribute = sex.

    Inputs are vectors in float32: age, then a zero or one per category of the other 15 features of Ding et al. Where an entry
    is blank, because the question was not put, all columns of its feature are zero. The column ``state`` has the census'
    numbers: ``partition=natural partition.label=state`` makes a client of every state. A fifth of each (class, attribute) group
    tests.

    Source: Ding, Hardt, Miller and Schmidt, Retiring Adult, NeurIPS 2021, arXiv:2108.04884, and github.com/socialfoundations/
    folktables, whose folders these are; the files are the census bureau's Public Use Microdata Sample.

    Deviations: age is standardised by mean and deviation of all training rows, which a federation would have to agree on, and
    categories are told apart where folktables hands out their codes as numbers. In folktables, ``ACSEmployment`` has these 16
    features and no filter; the filter (older than 16, younger than 90, a weight of 1 or more) is that of its
    ``ACSEmploymentFiltered``, which has a 17th feature. Weights are not used but for the filter.

    Note: tested on generated files alone; no published count is checked.

    Args:
        root: folder that holds ``<year>/1-Year/psam_p<number of the state>.csv``, as folktables lays them out.
        year: of the survey, 2017 or later; files of earlier years have other names.
        states: letters of states such as ``["CA", "TX"]``; ``None`` for all that are there.
        attribute: ``"sex"`` (Female 0, Male 1) or ``"race"`` (RAC1P, 9 values).
        sensitive_features: ``"keep"`` or ``"drop"``: whether sex and race are inputs.
        seed: of the draw of the test set; it does not follow the run's seed.
    """

    root: str
    year: Annotated[int, Whole(2017)] = 2018
    states: Sequence[str] | None = None
    attribute: Annotated[str, Choice("sex", "race")] = "sex"
    sensitive_features: Annotated[str, Choice("keep", "drop")] = "keep"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        named = None if self.states is None else list(self.states)
        if named is not None and (not named or len(set(named)) < len(named) or not set(named) <= set(STATES)):
            raise ValueError(
                "Expected `dataset.states` to be letters of states such as [CA, TX], each once, or null for all that are "
                f"there, but got {named}."
            )
        self.folder = located(self.root) / str(self.year) / "1-Year"

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write people of random features in the census' layout, of three states; see ``DatasetSource.generate``."""
        for state in self.states or ("CA", "NY", "TX"):
            per_group = 3 + int(0 if demand is None else demand.max())
            write_lines(self._file(state), [",".join(("SERIALNO", *self._wanted)), *self._people(state, per_group)])

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the states' files; see ``DatasetSource.load``."""
        states = self._present()
        tables = [self._people_of(state) for state in states]
        people = {name: np.concatenate([table[name] for table in tables]) for name in self._wanted}
        state = np.repeat([STATES[state] for state in states], [len(table["ESR"]) for table in tables])
        y = (people["ESR"] == 1).astype(np.int64)
        a = (people["SEX"] == 1).astype(np.int64) if self.attribute == "sex" else people["RAC1P"] - 1
        values = SEXES if self.attribute == "sex" else RACES
        if np.min(sizes := group_counts((len(CLASSES), len(values)), y, a)) < 2:
            raise DatasetCorruptError(
                f"Expected two or more people of every class and {self.attribute} in {self.folder}, one to train on and one to "
                f"test with, but there are {sizes}: take more `dataset.states`, or another `dataset.attribute`."
            )
        train, test = split_groups(y * len(values) + a, _TEST, self.seed)
        inputs = [standardised(people["AGEP"][:, None], train)]
        for name, codes in self._codes.items():
            if self.sensitive_features == "keep" or name not in _SENSITIVE:
                inputs.append(one_hot(people[name] - codes[0], len(codes)))
        return Dataset(vectors(inputs), y, a, train, test, None, CLASSES, values, columns={"state": state})

    @property
    def _codes(self) -> dict[str, range]:
        if self.year < 2019:
            return CODES
        return {("RELSHIPP" if name == "RELP" else name): codes for name, codes in CODES.items()} | {"RELSHIPP": range(20, 39)}

    @property
    def _wanted(self) -> tuple[str, ...]:
        return ("AGEP", *self._codes, "PWGTP", "ESR")

    def _file(self, state: str) -> Path:
        return self.folder / f"psam_p{STATES[state]:02d}.csv"

    def _archive(self, state: str) -> str:
        return f"{URL}/{self.year}/1-Year/csv_p{state.lower()}.zip"

    def _present(self) -> list[str]:
        """Return the letters of the states to read, in the census' order."""
        states = [state for state in STATES if (self._file(state).exists() if self.states is None else state in self.states)]
        absent = [state for state in states if not self._file(state).exists()]
        if not states or absent:
            lacking = self._file(absent[0]).name if absent else "psam_p<number>.csv of any state"
            raise DatasetNotFoundError(
                f"Expected {lacking} in {self.folder}, but it is not there: unpack {self._archive((absent or ['CA'])[0])} "
                f"there, name the folder that holds {self.year}/ with dataset.root=DIR, point FEDFACET_DATA at a folder that "
                "holds folktables/, or use `experiment=adult_gsc dataset.download=true` instead, which fetches 6 MB."
            )
        return states

    def _people_of(self, state: str) -> dict[str, NDArray[np.int64]]:
        """Return the columns of a state, of those whom the filter keeps, each of shape (N,); a blank is -1."""
        path = self._file(state)
        remedy = f"restore it from {self._archive(state)}"
        table = read_table(path, self._wanted, expected="a file of the American Community Survey", remedy=remedy)
        people = {
            "AGEP": table.whole("AGEP", 0, 99),
            "PWGTP": table.whole("PWGTP", 0, 99_999),
            # Of those under 16 it is not asked.
            "ESR": table.whole("ESR", 1, 6, blank=-1),
        }
        for name, codes in self._codes.items():
            blank = None if name in _SENSITIVE else -1
            people[name] = table.whole(name, codes[0], codes[-1], blank=blank)
        kept = (people["AGEP"] >= _YOUNGEST) & (people["AGEP"] <= _OLDEST) & (people["PWGTP"] >= 1)
        return {name: column[kept] for name, column in people.items()}

    def _people(self, state: str, per_group: int) -> Iterator[str]:
        """Yield lines, ``per_group`` for each class, sex and race, every tenth of whom the filter leaves out."""
        draw = rng.stream(0, f"generated-acs-{state}")
        for number, (y, sex, race) in enumerate(shuffled(draw, per_group, range(2), CODES["SEX"], CODES["RAC1P"])):
            person = {name: f"{draw.integers(codes[0], codes[-1] + 1):02d}" for name, codes in self._codes.items()}
            person |= {"SEX": str(sex), "RAC1P": str(race), "ESR": "1" if y else str(draw.choice([3, 6])), "ESP": ""}
            person |= {"AGEP": str(draw.integers(17, 50) + 40 * (1 - y)), "PWGTP": str(draw.integers(1, 200))}
            yield ",".join([f"2018GQ{number:07d}", *(person[name] for name in self._wanted)])
        for age, weight in (("12", "5"), ("16", "5"), ("90", "5"), ("30", "0")):
            person = {name: str(codes[0]) for name, codes in self._codes.items()} | {"AGEP": age, "PWGTP": weight}
            yield ",".join(["2018HU0000000", *((person | {"ESR": "" if age == "12" else "1"})[name] for name in self._wanted)])
