"""What a server of real sites holds of a large model: its peak memory over that with a tiny one, in copies of the model.

python benchmarks/messages.py [GROUP=OPTION] [KEY=VALUE] ...
"""

import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
WIDTHS = {"tiny": [64, 8, 2], "large": [64, 7800, 7800, 2]}
SERVER = """
import resource, sys
from fedfacet.commands import serve
status = serve.main(sys.argv[1:])
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # of the server alone, in kB on Linux
sys.exit(status)
"""


def main(overrides: list[str]) -> None:
    """Print both peaks, and the copies."""
    peaks = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pilot = ["pilot", f"folder={folder / 'pilot'}", "sites=2", "experiment=digits_gsc", "partition.scale=0.1"]
        subprocess.run([sys.executable, SRC / "client.py", *pilot], check=True, stdout=subprocess.DEVNULL)
        files = [folder / "pilot" / f"site_{number}" / "client.yaml" for number in (0, 1)]
        for file in files:
            file.write_text(file.read_text().replace("keep_letters: true", "keep_letters: false"))
        for size, widths in WIDTHS.items():
            given = [
                *(f"card={folder / 'pilot' / 'card.yaml'}", f"roster={folder / 'pilot' / 'roster.yaml'}"),
                *(f"deploy.clients=[{files[0]},{files[1]}]", f"paths.output_dir={folder / size}", "experiment=digits_gsc"),
                *("method=fedavg", "model=mlp", f"model.hidden={widths[1:-1]}", "federation.rounds=4", "logger=[]"),
                *("federation.cohort_size=4", "local.amount=1", "threads=1", *overrides),
            ]
            run = subprocess.run([sys.executable, "-c", SERVER, *given], check=True, stdout=subprocess.PIPE, text=True)
            found = re.search(r"^peak (\d+)$", run.stdout, re.MULTILINE)
            assert found is not None, run.stdout
            peaks[size] = 1024 * int(found[1])
    model = 4 * sum(inside * outside + outside for inside, outside in pairwise(WIDTHS["large"]))
    more = (peaks["large"] - peaks["tiny"]) / model
    peak, least = (peaks[size] / 1e9 for size in ("large", "tiny"))
    print(f"a model of {model / 1e6:.0f} MB: {peak:.2f} GB; a tiny one: {least:.2f} GB; {more:.1f} copies")


if __name__ == "__main__":
    main(sys.argv[1:])
