"""One page for the browser: what is on it, that nothing in it runs, and that a browser opens it."""

import base64
import csv
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image

from fedfacet.analysis import page as pages
from fedfacet.analysis.page import coded, page_of
from fedfacet.analysis.page_pictures import selection_svg, swatches_of
from fedfacet.analysis.runs import find_runs
from fedfacet.analysis.study import keys_of
from fedfacet.analysis.tables import make_table
from fedfacet.analysis.writers import to_markdown
from fedfacet.commands.report import main
from fedfacet.errors import ConfigError, FedFacetError
from fedfacet.plots.curves import looks_of

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}&amp;`"
VOID = {"meta", "link", "br", "img", "hr", "input"}
CSS = (Path(pages.__file__).parent / "page.css").read_text()


class Page(HTMLParser):
    """The elements of a page with their attributes, in order; what is open when text comes; tables as lines of cells."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.tables, self.texts = [], [], [], []
        self.feed(re.sub('<span class="option">(.*?)</span>', r"\1", text))  # so that a sentence is one text
        self.close()
        assert self.open == []  # all that was opened is closed

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"an attribute of {tag} is there twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append({"caption": "", "rows": [], "scopes": []})
        if tag == "tr":
            self.tables[-1]["rows"].append([])
        if tag in ("td", "th"):
            self.tables[-1]["rows"][-1].append("")
        if tag == "th":
            self.tables[-1]["scopes"].append(dict(attrs).get("scope"))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((tuple(self.open), data))
        if "caption" in self.open:
            self.tables[-1]["caption"] += data
        if {"td", "th"} & set(self.open):
            self.tables[-1]["rows"][-1][-1] += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def table(self, start):
        return next(table["rows"] for table in self.tables if table["caption"].strip().startswith(start))


def make_runs(folder, selectors=("feddiverse", "uniform"), seeds=(0, 1), timed=False, **changes):
    """Write run folders as train.py leaves them, of two groups of one class and three clients; curves of time take longest."""
    for selector in selectors:
        for seed in seeds:
            run = folder / f"{len(list(folder.glob('*')))}"
            run.mkdir(parents=True)
            choices = {"selector": selector, "experiment": "digits_gsc", "aggregator": "fedavg"}
            OmegaConf.save(OmegaConf.create({"seed": seed, "choices": choices, "lr": 0.1}), run / "config.yaml")
            values = [0.5 + 0.1 * seed + 0.05 * round + 0.02 * (selector == "uniform") for round in (1, 2, 3)]
            cohorts = ["0 1", "1 2", "0 1"]
            header = ["round", "cohort", "test/acc", "test/acc_worst_group", "test/acc_group/y0_a1"]
            header += ["sim/clock", "comm/floats_down", "comm/floats_up"] * timed
            with (run / "metrics.csv").open("w", newline="") as file:
                csv.writer(file).writerows(
                    [
                        header,
                        *(
                            [n, cohorts[n - 1], value, value / 2, value / 2, *([60 * n, 1e6, 5e5] * timed)]
                            for n, value in enumerate(values, 1)
                        ),
                    ]
                )
            final = {"round": 3, "test/acc": values[-1], "test/acc_worst_group": values[-1] / 2, "sim/clock": 180.0}
            final |= {"test/acc_group/y0_a0": values[-1], "test/acc_group/y0_a1": values[-1] / 2}
            summary = {
                "status": "finished", "rounds": 3, "final": final, "best": final | {"round": 2},
                "participation_counts": [2, 3, 1],
                "model_digest": f"{seed}" * 64, "data_digest": "d" * 64, "partition_digest": "e" * 64, "git_commit": "f" * 40,
                "versions": {"python": "3.11.7", "torch": "2.15.0"}, "hardware": {"cpu": "test"},
            }  # fmt: skip
            (run / "summary.json").write_text(json.dumps(summary | changes))
            names = {
                "class_names": ["cat", "dog"],
                "attribute_names": ["indoors", "outdoors"],
                "counts": [[[3, 3]], [[4, 1]], [[1, 4]]],
            }
            (run / "partition.json").write_text(json.dumps(names))
    return folder


@pytest.fixture
def logs(tmp_path):
    return make_runs(tmp_path / "logs")


def asked(**changes):
    return dict(command="python src/report.py logs --html page.html", **changes)


def test_the_page_is_whole_and_accessible(tmp_path):
    logs = make_runs(tmp_path / "logs", timed=True)
    page = Page(page_of(find_runs([logs]), **asked(baseline="uniform")))
    assert page.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert [len(page.all(tag)) for tag in ("header", "nav", "main", "footer", "h1", "title")] == [1, 1, 1, 1, 1, 2 * 3 + 2 + 1]
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a["href"] for a in page.all("a")] + [use["href"] for use in page.all("use")]
    links += [f"#{a['aria-labelledby']}" for _, a in page.elements if "aria-labelledby" in a]
    assert {link[1:] for link in links} <= set(ids)
    assert next(tag for tag, _ in page.elements if tag == "a" or tag == "h1") == "a"  # the skip link is the first
    for table in page.tables:
        assert table["caption"].strip()
        assert set(table["scopes"]) <= {"col", "colgroup", "row"}
        assert len({len(row) for row in table["rows"][-2:]}) == 1
    assert len(page.all("table")) == len([a for a in page.all("div") if a.get("class") == "scroll" and a["tabindex"] == "0"])
    assert len(page.all("details")) == len(page.all("summary")) == 2
    pictures = [svg for svg in page.all("svg") if svg.get("role") == "img"]
    assert len(pictures) == 2 * 3 + 2  # metrics x (round, bytes, time), and a heat map per selector
    assert all(svg["aria-label"] and svg["viewbox"] for svg in pictures)
    assert pictures[0]["aria-label"].startswith("test/acc (%) over round: feddiverse ends at 70; uniform ends at 72.")


def test_nothing_is_fetched_and_nothing_runs(logs):
    text = page_of(find_runs([logs]), **asked())
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "embed", "img", "form", "base"} & {tag for tag, _ in page.elements}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    addresses = [a.get("href", a.get("src", a.get("xlink:href", ""))) for _, a in page.elements]
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in addresses if address)
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text
    assert set(re.findall(r"url\(([^)]{2})", text)) <= {"#p"}
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")


def test_hostile_names_are_text(tmp_path):
    told = {
        "model_digest": HOSTILE, "data_digest": {HOSTILE: [HOSTILE]}, "partition_digest": HOSTILE, "git_commit": HOSTILE,
        "versions": {HOSTILE: HOSTILE}, "hardware": {HOSTILE: HOSTILE},
    }  # fmt: skip
    logs = make_runs(tmp_path / "<b>logs", selectors=(HOSTILE, "uniform"), **told)
    for run in logs.iterdir():
        partition = json.loads((run / "partition.json").read_text())
        (run / "partition.json").write_text(
            json.dumps(partition | {"class_names": [HOSTILE, "dog"], "attribute_names": [HOSTILE, "b"]})
        )
    last = sorted(logs.iterdir())[-1]
    (last / "summary.json").write_text(json.dumps({"status": HOSTILE}))
    text = page_of(find_runs([logs]), command=HOSTILE, baseline=HOSTILE)
    page = Page(text)
    assert not {"script", "img", "b"} & {tag for tag, _ in page.elements}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert "<script" not in text
    assert "49" not in "".join(data for where, data in page.texts if where[-1:] == ("h2",))  # no template in a template
    (heading,) = [data for where, data in page.texts if where[-1:] == ("h2",) and "Compared" in data]
    assert heading == f"Compared with {HOSTILE}"
    assert {row[0] for row in page.table("test/acc in percent")[2:]} == {HOSTILE, "uniform"}
    said = {cell for table in page.tables for row in table["rows"] for cell in row}
    assert {f"{HOSTILE}, {HOSTILE}", f"{HOSTILE}, b", HOSTILE, f"{HOSTILE} {HOSTILE}"} <= said  # groups, digests, versions


@pytest.mark.parametrize("std", ["population", "sample"])
def test_numbers_are_those_of_the_markdown_table(logs, std):
    runs = find_runs([logs])
    rows = Page(page_of(runs, **asked(std=std))).table("test/acc in percent and")
    assert rows[0] == ["selector", "test/acc", "test/acc_worst_group"]
    assert rows[1] == ["last", "best", "tail"] * 2
    expected = {"feddiverse": [], "uniform": []}
    for metric in ("test/acc", "test/acc_worst_group"):
        lines = to_markdown(make_table(runs, metric=metric, at="all", std=std).table()).splitlines()[2:4]
        for line in lines:
            name, *cells = (re.sub(r"\*\*|</?u>", "", cell).strip() for cell in line.split("|")[1:-1])
            expected[name] += cells
    assert {row[0]: row[1:] for row in rows[2:]} == expected
    spread = {"population": "5.00", "sample": "7.07"}[std]
    assert expected["uniform"][0] == f"72.00 ± {spread} (2)"


def test_groups_clients_settings_and_digests(logs):
    page = Page(page_of(find_runs([logs]), **asked()))
    assert page.table("test/acc_group in percent") == [
        ["group", "feddiverse", "uniform"],
        ["cat, indoors", "70.00 ± 5.00", "72.00 ± 5.00"],
        ["cat, outdoors", "35.00 ± 2.50 (worst)", "36.00 ± 2.50 (worst)"],
    ]
    counts = page.table("In how many rounds")
    assert counts[0] == ["client", "type", "feddiverse", "uniform"]
    assert [row[2:] for row in counts[1:]] == [["2", "2"], ["3", "3"], ["1", "1"]]
    assert page.table("Keys of the configuration") == [["key", "values"], ["selector", "feddiverse (2); uniform (2)"]]
    every = page.table("Every run")
    assert [row[3] for row in every[1:]] == ["0", "1", "0", "1"]
    assert {"finished", "0" * 64, "1" * 64, "d" * 64, "e" * 64, "python 3.11.7, torch 2.15.0"} <= {
        cell.partition(" at ")[0] for row in every for cell in row
    }


def test_a_metric_of_a_group_has_the_groups_name(logs, capsys):
    metric = "test/acc_group/y0_a1"
    name = f"{metric} (cat, outdoors)"
    page = Page(page_of(find_runs([logs]), **asked(metric=metric, baseline="uniform")))
    assert page.table(f"{name} in percent")[0][1] == name
    assert [data for where, data in page.texts if where[-1:] == ("h3",)].count(name) == 2  # the comparison and the curves
    assert [svg["aria-label"] for svg in page.all("svg") if svg.get("aria-label", "").startswith(f"{name} (%) over round: ")]
    for options in ([], ["--curves", "--picture", str(logs / "curves.svg")], ["--compare", "uniform"]):
        assert main([str(logs), "--metric", metric, *options]) == 0
        assert f"`{metric}` (cat, outdoors) in percent" in capsys.readouterr().out
    assert f"{name} (%)" in (logs / "curves.svg").read_text()
    (logs / "0" / "partition.json").unlink()
    (logs / "1" / "partition.json").write_text(json.dumps({"class_names": ["dog"], "attribute_names": ["in", "out"]}))
    assert main([str(logs), "--metric", metric]) == 0
    assert f"`{metric}` in percent" in capsys.readouterr().out  # runs that call it differently


def test_as_many_rows_as_there_are_colours_have_a_swatch_each():
    swatches = swatches_of(looks_of([str(row) for row in range(16)]))
    assert len({(dashes, sign) for _, _, dashes, sign in swatches}) == 16
    assert all(CSS.count(f" {colour}: ") == 2 for _, colour, *_ in swatches), "one for light pages, one for dark ones"


def test_a_comparison_and_another_metric_come_where_they_are_asked_for(logs):
    runs = find_runs([logs])
    for run in runs:
        summary = json.loads((run.path / "summary.json").read_text())
        summary["final"]["test/loss"] = 0.5 + run.seed
        (run.path / "summary.json").write_text(json.dumps(summary))
    page = Page(page_of(find_runs([logs]), **asked(baseline="uniform", metric="test/loss", at="last")))
    assert page.table("test/loss and")[0] == ["selector", "test/loss", "test/acc", "test/acc_worst_group"]
    compared = [table["rows"] for table in page.tables if table["caption"].startswith("Differences from uniform")]
    assert [rows[1][:3] for rows in compared] == [
        ["feddiverse", "2", "+0"],
        ["feddiverse", "2", "-2.00"],
        ["feddiverse", "2", "-1.00"],
    ]
    with pytest.raises(ConfigError, match="name one of 'feddiverse', 'uniform'"):
        page_of(runs, **asked(baseline="unifrom"))
    assert "Compared with" not in page_of(runs, **asked())


@pytest.mark.parametrize(
    ("selectors", "seeds", "baseline"),
    [
        (("active_fl", "pow_d", "uniform"), 5, "uniform"),
        (("pow_d", "active_fl"), 5, "active_fl"),
        (("pow_d", "uniform"), 4, None),
        (("uniform",), 5, None),
    ],
)
def test_settings_are_compared_unasked_where_five_seeds_are_paired(tmp_path, selectors, seeds, baseline):
    page = Page(page_of(find_runs([make_runs(tmp_path / "logs", selectors, range(seeds))]), **asked()))
    headings = [data for where, data in page.texts if where[-1:] == ("h2",) and "Compared" in data]
    assert headings == ([f"Compared with {baseline}"] if baseline else [])
    if baseline:
        others = [row[0] for row in page.table(f"Differences from {baseline}")[1:]]
        assert others == sorted({*selectors} - {baseline})
        assert any("--compare ROW" in data for where, data in page.texts if "li" in where)


def test_accuracy_over_clients(logs):
    assert "Accuracy per client" not in page_of(find_runs([logs]), **asked())
    spreads = {
        "client_fairness/acc_": {"worst": 0.1, "worst_tenth": 0.2, "mean": 0.5, "best_tenth": 0.8, "best": 0.9},
        "test/acc_own_": {"min": 0.3, "max": 0.7},
    }
    for run in sorted(logs.iterdir())[2:]:  # those of `uniform`
        summary = json.loads((run / "summary.json").read_text())
        summary["final"] |= {f"{start}{name}": value for start, of in spreads.items() for name, value in of.items()}
        summary["final"]["test/acc_own"] = 0.4 + 0.2 * int(run.name == "2")
        (run / "summary.json").write_text(json.dumps(summary))
    page = Page(page_of(find_runs([logs]), **asked()))
    held_out = page.table("client_fairness/acc in percent")
    assert held_out[0] == ["selector", "worst client", "worst 10 %", "mean", "best 10 %", "best client"]
    assert held_out[1:] == [
        ["feddiverse", *["missing"] * 5],
        ["uniform", "10.00 ± 0.00", "20.00 ± 0.00", "50.00 ± 0.00", "80.00 ± 0.00", "90.00 ± 0.00"],
    ]
    assert page.table("test/acc_own in percent")[2] == ["uniform", "30.00 ± 0.00", "50.00 ± 10.00", "70.00 ± 0.00"]


def test_rows_are_what_runs_differ_in(logs, tmp_path):
    assert keys_of(find_runs([logs]), (), ()) == (["selector"], ["experiment"])
    assert keys_of(find_runs([logs]), ("aggregator",), ("lr",)) == (["aggregator"], ["lr"])
    one = find_runs([logs / "0"])
    assert keys_of(one, (), ()) == (["selector"], ["experiment"])
    for folder, lr in (("0", 0.1), ("1", 0.2)):
        file = logs / folder / "config.yaml"
        OmegaConf.save(OmegaConf.merge(OmegaConf.load(file), {"lr": lr}), file)
    # The two seeds of one selector have learning rates of their own, so nobody may average them.
    assert keys_of(find_runs([logs / "0", logs / "1"]), (), ()) == (["lr"], ["experiment"])


def test_what_cannot_be_read_is_said_and_the_rest_is_shown(logs):
    (logs / "0" / "partition.json").write_text("{}")
    (logs / "1" / "summary.json").unlink()
    page = Page(page_of(find_runs([logs]), **asked()))
    notes = [data for where, data in page.texts if "li" in where]
    assert any("partition.json to be as it was written, but" in note for note in notes)
    assert any("no summary.json yet" in data for _, data in page.texts)
    assert [row[0] for row in page.table("test/acc_group")[1:]] == ["y0_a0", "y0_a1"]
    assert page.table("In how many rounds")[0] == ["client", "feddiverse", "uniform"]
    with pytest.raises(FedFacetError, match="finished run"):
        page_of(find_runs([logs / "1"]), **asked())


def test_the_command_writes_it_and_refuses_what_does_not_go_together(logs, tmp_path, capsys):
    target = tmp_path / "new" / "page.html"
    assert main([str(logs), "--html", str(target), "--compare", "uniform"]) == 0
    assert capsys.readouterr().out == f"wrote {target}\n"
    first = target.read_bytes()
    assert main([str(logs), "--html", str(target), "--compare", "uniform"]) == 0
    assert target.read_bytes() == first  # the same runs give the same page
    assert f"--html</span> {target}" in first.decode()
    assert main([str(logs), "--html", str(target), "--where", "selector=none"]) == 2
    wrong = "--curves|--layout table1|--selection|--overhead|--clients|--format csv|--output x|--tradeoff|--time-to val/acc=1"
    for options in [*wrong.split("|"), "--compare uniform --forest x.png"]:
        with pytest.raises(SystemExit):
            main([str(logs), "--html", str(target), *options.split()])
        assert "--html" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(logs), "--html", "page.pdf"])


def test_backticks_are_code():
    assert str(coded("`a<b` and <c>")) == "<code>a&lt;b</code> and &lt;c&gt;"
    assert str(coded("one ` alone")) == "one ` alone"


def test_an_option_is_not_broken_after_its_hyphens():
    whole = '<span class="option">{}</span>'.format
    assert str(coded("`a --b`, --c-d x-y")) == f"<code>a {whole('--b')}</code>, {whole('--c-d')} x-y"
    assert ".option { white-space: nowrap; }" in CSS


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_contrasts(mode):
    """WCAG 2.2: 4.5 for text, 3 for lines of a picture."""
    schemes = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)]
    colours = schemes[mode == "dark"]
    assert set(schemes[0]) == set(schemes[1])

    def contrast(one, other):
        low, high = sorted((luminance(colours[one]), luminance(colours[other])))
        return (high + 0.05) / (low + 0.05)

    assert min(contrast(text, ground) for text in ("ink", "quiet", "link") for ground in ("page", "shade")) >= 4.5
    lines = ("blue", "orange", "green", "pink", "sky", "vermilion", "rule")
    assert {name: contrast(name, "page") for name in lines if contrast(name, "page") < 3} == {}


def test_all_colours_of_a_curve_follow_the_page(tmp_path):
    text = page_of(find_runs([make_runs(tmp_path / "logs", timed=True)]), **asked())
    themed = [svg for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL) if 'class="themed"' in svg]
    assert len(themed) == 2 * 3
    assert not [svg for svg in themed if re.search("#[0-9a-f]{6}", re.sub(r'(href|id|clip-path)="[^"]*"', "", svg))]
    assert any(re.search('style="fill-opacity', svg) for svg in themed), "matplotlib names no black where it fills"
    assert re.search(r"svg\.themed(, [^{]*)? \{ fill: var\(--ink\); \}", CSS)


def test_maps_of_who_was_selected_let_the_page_shine_through_and_stand_in_the_order_of_the_tables(tmp_path):
    logs = make_runs(tmp_path / "logs", selectors=("uniform", "feddiverse", "10", "9"))
    text = page_of(find_runs([logs]), **asked())
    maps = [svg for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL) if 'class="themed map"' in svg]
    rows = [row[0] for row in Page(text).table("Means over seeds")[1:]]
    assert [re.search("selected by (\\w+)", svg)[1] for svg in maps] == rows == ["9", "10", "feddiverse", "uniform"]
    for svg in maps:
        data = base64.b64decode(re.search(r"data:image/png;base64,([^\"]*)", svg)[1])
        pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))
        assert set(np.unique(pixels[..., 3])) >= {0, 255}
        assert (pixels[..., :3][pixels[..., 3] > 0] == 0).all()  # black, which a dark page turns to white
        grounds = re.findall(r"#[0-9a-f]{6}", re.sub(r'(href|id|clip-path)="[^"]*"', "", svg))
        assert "#ffffff" not in grounds
        assert re.search(r"<text[^>]*fill: #101010[^>]*>none</text>", svg)  # on a pale strip, also on a dark page
    assert re.search(r"prefers-color-scheme: dark\) \{[^@]*svg\.map image \{ filter: invert\(1\); \}", CSS)


def test_a_map_has_no_round_0():
    svg = selection_svg(np.ones((12, 3), dtype=bool), ["CI", "AI", "SC"], "title")
    assert re.findall("<text[^>]*>([0-9]+)</text>", svg) == ["2", "4", "6", "8", "10", "12"]


CHROMIUM = next(
    (found for name in ("chromium", "chromium-headless-shell", "google-chrome") if (found := shutil.which(name))), None
)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install one and put it on the PATH")
@pytest.mark.parametrize("width", [390, 1400])
def test_a_browser_opens_it(tmp_path, width):
    """A hostile page sets no title, says nothing on the console, and is no wider than its window."""
    logs = make_runs(tmp_path / "logs", selectors=(HOSTILE, "uniform"))
    target = tmp_path / "page.html"
    assert main([str(logs), "--html", str(target), "--compare", "uniform"]) == 0
    # A frame of the page in a window of that width tells how wide it is, since the page itself may run nothing.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f"<iframe id=f src=page.html style='width:{width}px;height:900px;border:0'></iframe><script>f.onload = () => {{"
        "const d = f.contentDocument.documentElement; document.body.dataset.over = d.scrollWidth - d.clientWidth; "
        "document.body.dataset.title = f.contentDocument.title }</script>"
    )
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--allow-file-access-from-files", "--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom",
         "--window-size=1500,1000", frame.as_uri()],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert 'data-over="0"' in done.stdout
    assert 'data-title="Report on 4 runs"' in done.stdout
    assert "CONSOLE" not in done.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install one and put it on the PATH")
def test_a_table_that_goes_on_beyond_its_edge_has_a_shadow_there(tmp_path):
    style = "height: 100px; margin: 0; width: 300px"
    rows = "".join(f"<div class=scroll style='{style}'><p style='width: {width}px'></p></div>" for width in (900, 90))
    (tmp_path / "tables.html").write_text(f"<style>{CSS} body {{ margin: 0; padding: 0 }}</style>{rows}")
    subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--hide-scrollbars", "--window-size=600,400", f"--screenshot={tmp_path / 'tables.png'}",
         (tmp_path / "tables.html").as_uri()],
        capture_output=True, timeout=300, check=True,
    )  # fmt: skip
    pixels = np.asarray(Image.open(tmp_path / "tables.png").convert("L")).astype(int)
    page = pixels[300, 500]
    wide, narrow = pixels[50, :300], pixels[150, :300]
    assert abs(wide[299] - page) > 50
    assert abs(wide[0] - page) <= 2  # nothing is hidden on the left
    assert abs(narrow - page).max() <= 2
