"""What a site keeps on its disk, by run and round: its clients' memory, which is nowhere else, and a server's letters."""

import re
from pathlib import Path

from fedfacet.deploy.protocol import LetterError, unpack
from fedfacet.deploy.settings import SiteSettings
from fedfacet.errors import CheckpointError
from fedfacet.storage.atomic_write import sync, write_synced
from fedfacet.storage.run_files import bytes_of
from fedfacet.storage.tensors import sealed, unsealed
from fedfacet.types import State

_MOST_BYTES = 1 << 36
_FILE = re.compile(r"round_(\d{9})\.safetensors")


class MemoryStore:
    """The memory of a site's clients after the rounds in which they trained.

    A version is written when a client has trained, whether or not its update arrives; the server says which version counts.

    Args:
        folder: of all runs, made where it is missing; only its owner reads it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, run: str, client_id: int, round: int) -> State:
        """Return what a client kept after a round.

        Raises:
            LetterError: if that is not there.
        """
        file = self._file(run, client_id, round)
        try:
            return unsealed(bytes_of(file, _MOST_BYTES))
        except Exception as error:
            raise LetterError(
                f"what client {client_id} kept after round {round} cannot be read ({type(error).__name__}): bring the site's "
                f"{file.relative_to(self.folder.parent)} back, or start a new run"
            ) from None

    def put(self, run: str, client_id: int, round: int, kept: State, oldest: int | None) -> None:
        """Keep what a client has after a round; it is on the disk when this returns.

        Args:
            run: of the server.
            client_id: in the roster.
            round: of the training; a round that is done again writes the same.
            kept: the memory.
            oldest: the earliest round after which the server may go on again; versions that were replaced before it are
                removed. ``None`` keeps all.
        """
        file = self._file(run, client_id, round)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_synced(file, [sealed(kept)])
        sync(file.parent)
        if oldest is not None:
            before = sorted(
                one.name for one in file.parent.iterdir() if (m := _FILE.fullmatch(one.name)) and int(m[1]) <= oldest
            )
            for name in before[:-1]:
                (file.parent / name).unlink(missing_ok=True)

    def _file(self, run: str, client_id: int, round: int) -> Path:
        return self.folder / run / str(client_id) / f"round_{round:09d}.safetensors"


def letters_of(settings: SiteSettings, client: str, round: int, run: str) -> tuple[int, list[bytes]]:
    """Return a client's number, and the letters that led to its update of a round, which the site has kept.

    Raises:
        CheckpointError: if it has not.
    """
    folder = settings.state / "letters" / str(run)
    hellos = sorted(folder.glob("*_hello_*"))
    if not hellos:
        raise CheckpointError(
            f"Expected the letters of the run in {folder}, but there are none: give keep_letters: true before a run, and leave "
            "1 GB of the disk free."
        )
    hello = bytes_of(hellos[0], _MOST_BYTES)
    number = unpack(hello, len(hello)).body["clients"].get(client)
    order = folder / f"{round:09d}_train_{number}"
    if not order.is_file():
        raise CheckpointError(
            f"Expected an order for {client} in round {round}, but the site has kept none (it keeps them while "
            "1 GB of the disk is free): give another round."
        )
    weights = [bytes_of(file, _MOST_BYTES) for file in sorted(folder.glob(f"{round:09d}_weights_*"))]
    return number, [hello, *weights, bytes_of(order, _MOST_BYTES)]
