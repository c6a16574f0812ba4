"""How a run stands, in two files that anybody may read at any time: ``status.json``, and ``metrics.prom`` for Prometheus."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedfacet.deploy.engine import DeployedEngine
from fedfacet.federation import Federation
from fedfacet.records import RoundResult
from fedfacet.storage.atomic_write import atomic_write, json_text

STATUS, PROMETHEUS = "status.json", "metrics.prom"

Sample = tuple[Mapping[str, str], float]


def write_status(
    run_dir: Path, federation: Federation, engine: DeployedEngine, line: Mapping[str, Any], of: RoundResult
) -> None:
    """Write both files after a round, each at one blow; nothing in them is more than the journal and ``metrics.csv`` tell.

    Bytes, late and refused messages are counted from the start of this process, as Prometheus expects of what is started again.

    Args:
        run_dir: where they are written.
        federation: that has done the round.
        engine: knows the sites.
        line: of the journal.
        of: the round.
    """
    exchange, record, now = engine.exchange, engine.record, round(time.time(), 3)
    sites = exchange.registry.sites
    there = {site: bool(exchange.transport.sites().get(site)) for site in sites}
    late = {site: engine.late[site] for site in sites}
    refused = sorted(engine.refused.items())
    status = {
        **{name: line[name] for name in ("round", "run")},
        "rounds": federation.rounds,
        "time": now,
        "connected": there,
        "available": len(line["available"]),
        **{name: line[name] for name in ("cohort", "arrived", "lost")},
        "seconds": {site: round(seconds, 3) for site, seconds in record.seconds.items()},
        "bytes": {site: {way: exchange.traffic[site, way] for way in ("down", "up")} for site in sites},
        "late": late,
        "refused": {site: {code: number for (of, code), number in refused if of == site} for site in sites},
        "metrics": of.metrics,
    }
    crossed = [({"site": site, "direction": way}, exchange.traffic[site, way]) for site in sites for way in ("down", "up")]
    codes = [({"site": site, "code": code}, number) for (site, code), number in refused]
    codes_help = "Messages that the site refused, by its code, and answers that did not count (answer, update, died)."
    series: list[tuple[str, str, str, Iterable[Sample]]] = [
        ("round", "gauge", "Rounds that are done.", [({}, line["round"])]),
        ("rounds", "gauge", "Rounds that the run is to have.", [({}, federation.rounds)]),
        ("round_end_seconds", "gauge", "When the last round was done, in Unix time.", [({}, now)]),
        ("clients", "gauge", "Clients of the round.", [({"what": what}, len(line[what])) for what in _CLIENTS]),
        ("site_connected", "gauge", "Whether a message would reach the site.", _by_site(there)),
        ("update_seconds", "gauge", "Until the site's last update of the round.", _by_site(record.seconds)),
        ("letter_bytes_total", "counter", "Messages to (down) and from (up) the site.", crossed),
        ("late_total", "counter", "Messages that the site did not answer in time.", _by_site(late)),
        ("refused_total", "counter", codes_help, codes),
        ("metric", "gauge", "Of the round, as in metrics.csv.", [({"name": n}, value) for n, value in of.metrics.items()]),
    ]
    for name, content in ((STATUS, json_text(status) + "\n"), (PROMETHEUS, prometheus_text(series))):
        with atomic_write(run_dir / name) as unfinished:
            unfinished.write_text(content, encoding="utf-8")


_CLIENTS = ("available", "cohort", "arrived", "lost")


def prometheus_text(series: Iterable[tuple[str, str, str, Iterable[Sample]]]) -> str:
    r"""Return metrics in the text format of Prometheus, version 0.0.4.

    Args:
        series: of each metric its name without ``fedfacet_``, type, help, and values by labels.

    Example:
        >>> print(prometheus_text([("round", "gauge", "Done.", [({"site": 'a"b'}, 3)])]), end="")
        # HELP fedfacet_round Done.
        # TYPE fedfacet_round gauge
        fedfacet_round{site="a\"b"} 3.0
    """
    lines = []
    for name, kind, told, samples in series:
        lines += [f"# HELP fedfacet_{name} {told}", f"# TYPE fedfacet_{name} {kind}"]
        for labels, value in samples:
            inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            lines.append(f"fedfacet_{name}{f'{{{inside}}}' if inside else ''} {_number(value)}")
    return "\n".join(lines) + "\n"


def _by_site(values: Mapping[str, float]) -> list[Sample]:
    return [({"site": site}, value) for site, value in values.items()]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    """Return a number as Go reads it, which Prometheus is written in."""
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(text := repr(float(value)), text)
