"""Short runs whose numbers are kept; ``python tests/golden/regenerate.py`` writes them anew, and the diff is reviewed."""

import json
from pathlib import Path

import torch

from fedfacet.build import build
from fedfacet.config import compose_job

FOLDER = Path(__file__).parent
ROUNDS = 6

CURVES = {
    # True triplets: one sample on the brink, of 960 that fifty steps lead to an estimate, would give another cohort.
    "digits_gsc": ["heterogeneity=true"],
    "digits_gsc_ordinary_pretraining": [
        "heterogeneity=true",
        "selector.pretraining=ordinary",
    ],  # that of results/
    "digits_gsc_uniform_fedavg": ["selector=uniform", "aggregator=fedavg", "participation=stragglers", "correction=proximal"],
}
"""Name -> overrides of the offline main job."""


def curve(overrides: list[str]) -> list[dict[str, object]]:
    """Run a few rounds on one thread; return every round's cohort and metrics."""
    config, _ = compose_job("train", ["experiment=digits_gsc", "callbacks=evaluate", *overrides])
    config.logger = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        federation = build(config, Path("unused"))
        results = [federation.run_round() for _ in range(ROUNDS)]
    finally:
        torch.set_num_threads(threads)
    return [
        {
            "round": result.round,
            "cohort": list(result.cohort),
            "metrics": {name: round(value, 6) for name, value in result.metrics.items()},
        }
        for result in results
    ]


def main() -> None:
    """Write the curves."""
    for name, overrides in CURVES.items():
        rounds = ",\n".join(json.dumps(record) for record in curve(overrides))
        (FOLDER / f"{name}.json").write_text(f"[\n{rounds}\n]\n")
        print(f"wrote {FOLDER / name}.json")


if __name__ == "__main__":
    main()
