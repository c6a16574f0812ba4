"""Adult, the census income of UCI."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Choice
from fedfacet.data.dataset import Dataset
from fedfacet.data.download import download as fetch_file
from fedfacet.data.generated import shuffled, write_lines
from fedfacet.data.source import DatasetSource, located
from fedfacet.data.tables import check_published, group_counts, one_hot, read_table, standardised, vectors
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
PUBLISHED = {
    "adult.data": "md5:5d7c39d7b8804f071cdd1f2a7c460872",
    "adult.test": "md5:35238206dfdf7f1fe215bbb874adecdc",
}
OFFICIAL_COUNTS = {"adult.data": [[9592, 15128], [1179, 6662]], "adult.test": [[4831, 7604], [590, 3256]]}
"""Rows per income and sex."""

_NAMES = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex capital-gain capital-loss "
    "hours-per-week native-country income"
)
COLUMNS = tuple(_NAMES.split())
NUMBERS = {
    "age": (0, 150),
    "education-num": (1, 16),
    "capital-gain": (0, 999_999),
    "capital-loss": (0, 999_999),
    "hours-per-week": (0, 168),
}
"""The numeric columns that a model is given, and what they range over."""

_CATEGORIES = {
    "workclass": "Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov Without-pay",
    "education": (
        "10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors Doctorate HS-grad Masters Preschool "
        "Prof-school Some-college"
    ),
    "marital-status": "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated Widowed",
    "occupation": (
        "Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners Machine-op-inspct "
        "Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support Transport-moving"
    ),
    "relationship": "Husband Not-in-family Other-relative Own-child Unmarried Wife",
    "race": "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White",
    "sex": "Female Male",
    "native-country": (
        "Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England France Germany Greece Guatemala "
        "Haiti Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy Jamaica Japan Laos Mexico Nicaragua "
        "Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico Scotland South Taiwan Thailand "
        "Trinadad&Tobago United-States Vietnam Yugoslavia"
    ),
}
CATEGORIES = {column: tuple(names.split()) for column, names in _CATEGORIES.items()}
"""The names in the published description, in alphabetical order."""

_UNKNOWN = "?"
_MAY_BE_UNKNOWN = ("workclass", "occupation", "native-country")
_SENSITIVE = ("race", "sex")
_INCOMES = ("<=50K", ">50K")
_COLUMNS_OF_CLIENTS = ("sex", "race", "education", "occupation", "workclass")


class _Part(NamedTuple):
    """One of the two files: classes, shape (N,), numbers, shape (N, D), and the codes of each category."""

    y: NDArray[np.int64]
    numbers: NDArray[np.int64]
    codes: dict[str, NDArray[np.int64]]


@dataclass(eq=False, kw_only=True)
class Adult(DatasetSource):
    """Adults in the United States' census of 1994, y = whether they earn more than 50,000 dollars a year, attribute = sex.

    The official 32,561 rows train and 16,281 test. Women with the lower income, men with it, women with the higher, men with
    it: 9,592, 15,128, 1,179 and 6,662 in training, 4,831, 7,604, 590 and 3,256 in the test. Inputs are vectors in float32:
    numbers (age, education-num, capital-gain, capital-loss, hours-per-week), then a zero or one per category. ``fnlwgt``, which
    says how many people a row stands for, is never one of them. There are 97 of all features, 104 with the sensitive ones, 92
    of the categories alone, and 99 of these with the sensitive ones.

    Columns for ``partition.label`` are ``sex``, ``race``, ``education``, ``occupation``, ``workclass`` (numbered as in
    ``CATEGORIES``, unknown last) and ``doctorate`` (0 without, 1 with one): ``partition=natural partition.label=doctorate``
    makes the two clients of Mohri et al. (arXiv:1902.00146), of 32,148 and 413 people less those who validate.

    An unknown category, ``?``, has zeros in all columns of its feature, by which it is told from every other one, as in q-FFL's
    released code (arXiv:1905.10497), which has the same 99.

    Deviation: the numbers are standardised by mean and deviation of all training rows. In a federation the clients would have
    to agree on these constants, and would learn them of each other.

    Note: without the sensitive features, ``relationship`` still tells husbands from wives, so that models can infer the sex of
    most people who are married.

    Source: Kohavi and Becker, UCI Machine Learning Repository, 1996, https://doi.org/10.24432/C5XW20; CC BY 4.0.

    Args:
        root: folder that holds ``adult.data`` and ``adult.test``.
        attribute: ``"sex"`` (Female 0, Male 1), ``"race"`` (5 values), ``"sex_race"`` (10 values), or ``"doctorate"`` (without
            0, with one 1), which is an input all the same.
        features: ``"all"`` or ``"categorical"``, which leaves out the numbers.
        sensitive_features: ``"drop"`` or ``"keep"``: whether sex and race are inputs.
        missing: ``"category"``, or ``"drop"`` for rows without an unknown category alone, 30,162 and 15,060 of them.
        verify_counts: whether to refuse files whose numbers of rows per income and sex are not the published ones.
        download: whether to fetch files (6 MB) that are missing.
        url: of the folder that they are fetched from.
    """

    root: str
    attribute: Annotated[str, Choice("sex", "race", "sex_race", "doctorate")] = "sex"
    features: Annotated[str, Choice("all", "categorical")] = "all"
    sensitive_features: Annotated[str, Choice("drop", "keep")] = "drop"
    missing: Annotated[str, Choice("category", "drop")] = "category"
    verify_counts: bool = True
    download: bool = False
    url: str = URL

    def __post_init__(self) -> None:
        super().__post_init__()
        self.folder = located(self.root)

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write people of random features in UCI's layout; see ``DatasetSource.generate``."""
        enough = 40 + int(0 if demand is None else demand.max())
        for name, per_group, end in (("adult.data", enough, ""), ("adult.test", 10, ".")):
            lines = list(_people(name, per_group, end))
            write_lines(self.folder / name, ["|1x3 Cross validator", *lines, ""] if end else [*lines, ""])

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the rows; see ``DatasetSource.load``."""
        if self.download:
            for name, digest in PUBLISHED.items():
                if not (self.folder / name).is_file():
                    fetch_file(f"{self.url}/{name}", self.folder / name, published=digest if self.url == URL else None)
        parts = [self._part(name) for name in PUBLISHED]
        y = np.concatenate([part.y for part in parts])
        codes = {name: np.concatenate([part.codes[name] for part in parts]) for name in CATEGORIES}
        train, test = np.split(np.arange(len(y)), [len(parts[0].y)])
        features = [] if self.features == "categorical" else [standardised(np.concatenate([p.numbers for p in parts]), train)]
        for name, categories in CATEGORIES.items():
            if self.sensitive_features == "keep" or name not in _SENSITIVE:
                features.append(one_hot(codes[name], len(categories)))
        columns = {name: codes[name] for name in _COLUMNS_OF_CLIENTS}
        columns["doctorate"] = (codes["education"] == CATEGORIES["education"].index("Doctorate")).astype(np.int64)
        a, values = self._attribute(columns)
        return Dataset(vectors(features), y, a, train, test, None, _INCOMES, values, columns=columns)

    def _attribute(self, codes: dict[str, NDArray[np.int64]]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        if self.attribute == "doctorate":
            return codes["doctorate"], ("No doctorate", "Doctorate")
        if self.attribute != "sex_race":
            return codes[self.attribute], CATEGORIES[self.attribute]
        races = CATEGORIES["race"]
        names = tuple(f"{sex} {race}" for sex in CATEGORIES["sex"] for race in races)
        return codes["sex"] * len(races) + codes["race"], names

    def _part(self, name: str) -> _Part:
        path = self.folder / name
        if not path.exists():
            raise DatasetNotFoundError(
                f"Expected Adult's {name} in {self.folder}, but it is not there: fetch it (6 MB with the other file) with "
                "`experiment=adult_gsc dataset.download=true`, name the folder that holds it with dataset.root=DIR, point "
                "FEDFACET_DATA at a folder that holds adult/, or use `experiment=digits_gsc` instead, which needs no download."
            )
        remedy = f"restore {name} from {self.url}"
        wanted = [column for column in COLUMNS if column != "fnlwgt"]
        table = read_table(path, wanted, expected="a file of Adult", remedy=remedy, names=COLUMNS, comment="|")
        part = _Part(
            table.codes("income", [f"{income}." if name == "adult.test" else income for income in _INCOMES]),
            np.stack([table.whole(column, *interval) for column, interval in NUMBERS.items()], axis=1),
            {column: table.codes(column, _entries(column)) for column in CATEGORIES},
        )
        if self.verify_counts:
            counts = group_counts((2, 2), part.y, part.codes["sex"])
            check_published(counts, OFFICIAL_COUNTS[name], name, "rows per income and sex", path, remedy)
        if self.missing == "category":
            return part
        known = np.all([part.codes[column] < len(CATEGORIES[column]) for column in _MAY_BE_UNKNOWN], axis=0)
        if not known.any():
            raise DatasetCorruptError(
                f"Expected rows without an unknown category in {name}, but there are none: set dataset.missing=category."
            )
        return _Part(part.y[known], part.numbers[known], {column: codes[known] for column, codes in part.codes.items()})


def _entries(column: str) -> tuple[str, ...]:
    """Return what a column of categories may say; what is unknown comes last."""
    return (*CATEGORIES[column], _UNKNOWN) if column in _MAY_BE_UNKNOWN else CATEGORIES[column]


def _people(name: str, per_group: int, end: str) -> Iterator[str]:
    """Yield lines of a file, ``per_group`` for each income, sex and race; who earns more is older and works more."""
    draw = rng.stream(0, f"generated-{name}")
    for y, sex, race in shuffled(draw, per_group, range(2), CATEGORIES["sex"], CATEGORIES["race"]):
        person = {column: draw.choice(_entries(column)) for column in CATEGORIES}
        person |= {column: str(draw.integers(17 + 30 * y, 50 + 30 * y)) for column in ("age", "hours-per-week")}
        person |= {"capital-gain": "0", "capital-loss": "0", "fnlwgt": str(draw.integers(10_000, 1_000_000))}
        person |= {"education-num": str(draw.integers(1 + 4 * y, 13 + 4 * y)), "sex": sex, "race": race}
        yield ", ".join([*(person[column] for column in COLUMNS[:-1]), f"{_INCOMES[y]}{end}"])
