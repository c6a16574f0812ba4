"""COMPAS, ProPublica's table of people who were arrested in Broward County."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Choice
from fedfacet.data.dataset import Dataset
from fedfacet.data.generated import shuffled, write_lines
from fedfacet.data.labels import split_groups
from fedfacet.data.source import DatasetSource, located
from fedfacet.data.tables import Table, check_published, group_counts, read_table, standardised, vectors
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

FILE = "compas-scores-two-years.csv"
URL = f"https://raw.githubusercontent.com/propublica/compas-analysis/master/{FILE}"
RACES = ("Caucasian", "African-American", "Hispanic", "Other", "Asian", "Native American")
SEXES = ("Female", "Male")
CLASSES = ("no recidivism", "recidivism")
OFFICIAL_COUNTS = [[1281, 1514, 320, 219, 23, 6], [822, 1661, 189, 124, 8, 5]]
"""Rows per class and race that ProPublica's filter leaves."""

_COUNTS = ("juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count")
_NUMBERS = {"age": (0, 150)} | dict.fromkeys(_COUNTS, (0, 1000))
_DEGREES = ("M", "F", "O")
_SCORES = ("Low", "Medium", "High", "N/A")
_WANTED = (
    *_NUMBERS,
    *("sex", "race", "c_charge_degree", "days_b_screening_arrest", "is_recid", "score_text", "two_year_recid"),
)
_MOST_DAYS = 30
_NO_DAY = 99_999
_TEST = 0.2
_PERSONAL = ("name", "first", "last", "dob")


@dataclass(eq=False, kw_only=True)
class Compas(DatasetSource):
    """Who is arrested again within two years, y = ``two_year_recid``, attribute = race.

    By default the 5,278 rows of people who are Caucasian (0) or African-American (1) out of the 6,172 that ProPublica's filter
    leaves: a charge within 30 days of the screening, a known outcome, no ordinary traffic offence, a score. Caucasians and
    African-Americans who are not arrested again and those who are: 1,281, 1,514, 822 and 1,661. A fifth of each group tests.

    Inputs are six numbers in float32: age, juvenile felonies, misdemeanours and other offences, prior counts, and whether the
    charge is a felony. Never inputs: race and sex; ``decile_score`` and ``score_text``, which are COMPAS' own answer;
    ``is_recid``, ``r_*``, ``vr_*``, ``event``, ``start``, ``end`` and the dates of custody, which tell y.

    The published file names people. ``name``, ``first``, ``last``, ``dob`` and all other columns that are not needed are
    dropped as each line is read, and no error says what an entry is. The loader does not fetch the file, so that nobody comes
    to hold these names without knowing; a copy without these columns will do.

    Columns for ``partition.label`` are ``race`` and ``sex``.

    Deviation: the numbers other than the felony are standardised by mean and deviation of all training rows. In a federation
    the clients would have to agree on these constants, and would learn them of each other.

    Note: an arrest is not a crime, and who is policed more is arrested more; y measures both.

    Source: Larson, Mattu, Kirchner and Angwin, ProPublica, 2016, https://github.com/propublica/compas-analysis.

    Args:
        root: folder that holds ``compas-scores-two-years.csv``.
        attribute: ``"race"``, ``"race_all"`` (all six values, 6,172 rows) or ``"sex"`` (Female 0, Male 1; 6,172 rows).
        verify_counts: whether to refuse a file whose numbers of rows per class and race are not those above.
        seed: of the draw of the test set; it does not follow the run's seed.
    """

    root: str
    attribute: Annotated[str, Choice("race", "race_all", "sex")] = "race"
    verify_counts: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.file = located(self.root) / FILE

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write people who do not exist in ProPublica's layout; see ``DatasetSource.generate``."""
        per_group = 20 + int(0 if demand is None else demand.max())
        write_lines(self.file, [",".join((*_PERSONAL, *_WANTED)), *_people(per_group)])

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the rows; see ``DatasetSource.load``."""
        if not self.file.exists():
            raise DatasetNotFoundError(
                f"Expected ProPublica's table at {self.file}, but there is no such file: put {URL} (2.5 MB; it names people) "
                "there, name the folder that holds it with dataset.root=DIR, point FEDFACET_DATA at a folder that holds "
                "compas/, or use `experiment=adult_gsc dataset.download=true` instead, which fetches 6 MB."
            )
        remedy = f"restore it from {URL}"
        table = read_table(self.file, _WANTED, expected="ProPublica's table", remedy=remedy, private=True)
        y, race, sex = table.whole("two_year_recid", 0, 1), table.codes("race", RACES), table.codes("sex", SEXES)
        felony = table.codes("c_charge_degree", _DEGREES) == _DEGREES.index("F")
        numbers = np.stack([table.whole(name, *interval) for name, interval in _NUMBERS.items()], axis=1)
        kept = _filter(table)
        if self.verify_counts:
            counts, each = (
                group_counts((2, len(RACES)), y[kept], race[kept]),
                "rows per class and race after ProPublica's filter",
            )
            check_published(counts, OFFICIAL_COUNTS, "table", each, self.file, remedy)
        if self.attribute == "race":
            kept &= race < 2
        a, values = {"race": (race, RACES[:2]), "race_all": (race, RACES), "sex": (sex, SEXES)}[self.attribute]
        y, a, numbers = y[kept], a[kept], numbers[kept]
        if np.min(sizes := group_counts((len(CLASSES), len(values)), y, a)) < 2:
            raise DatasetCorruptError(
                f"Expected two or more rows of every class and {self.attribute} in {self.file}, one to train on and one to "
                f"test with, but it has {sizes}: {remedy}."
            )
        train, test = split_groups(y * len(values) + a, _TEST, self.seed)
        inputs = vectors([standardised(numbers, train), felony[kept, None].astype(np.float32)])
        columns = {"race": race[kept], "sex": sex[kept]}
        return Dataset(inputs, y, a, train, test, None, CLASSES, values, columns=columns)


def _filter(table: Table) -> NDArray[np.bool_]:
    """Return which rows ProPublica keeps, shape (N,)."""
    days = table.whole("days_b_screening_arrest", -_NO_DAY, _NO_DAY, blank=_NO_DAY)
    known = table.whole("is_recid", -1, 1) != -1
    degree, score = table.codes("c_charge_degree", _DEGREES), table.codes("score_text", _SCORES)
    charged = (np.abs(days) <= _MOST_DAYS) & (degree != _DEGREES.index("O"))
    kept: NDArray[np.bool_] = charged & known & (score != _SCORES.index("N/A"))
    return kept


def _people(per_group: int) -> Iterator[str]:
    """Yield lines, ``per_group`` for each class, race and sex, every tenth of whom the filter leaves out."""
    draw = rng.stream(0, "generated-compas")
    for number, (y, race, sex) in enumerate(shuffled(draw, per_group, range(2), RACES, SEXES)):
        person = dict.fromkeys(_NUMBERS, "0") | {"race": race, "sex": sex, "two_year_recid": str(y), "is_recid": str(y)}
        person |= {"age": str(draw.integers(18, 60) - 10 * y + 10), "priors_count": str(draw.integers(4) + 6 * y)}
        person |= {"c_charge_degree": "MF"[draw.integers(2)], "score_text": _SCORES[draw.integers(3)]}
        person["days_b_screening_arrest"] = ("", "-31")[number // 10 % 2] if number % 10 == 9 else str(draw.integers(-30, 31))
        personal = (f'"generated, person {number}"', "person", "generated", "1900-01-01")
        yield ",".join((*personal, *(person[name] for name in _WANTED)))
