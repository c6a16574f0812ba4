"""What a site keeps on its disk: its clients' memory, which is nowhere else, what they hold out, and a server's messages."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from fedfacet.deploy.protocol import Message, MessageError, unpack
from fedfacet.deploy.settings import SiteSettings
from fedfacet.errors import CheckpointError
from fedfacet.storage.atomic_write import sync, write_synced
from fedfacet.storage.run_files import bytes_of, is_there, json_of, sealed_json
from fedfacet.storage.tensors import sealed, unsealed
from fedfacet.types import State

_MOST_BYTES = 1 << 36
_FILE = re.compile(r"round_(\d{9})\.safetensors")
_LEFT_FREE = 2**30  # bytes of the disk; a server's messages take no more of it


class SiteDisk:
    """The folder of a site, made where it is missing; only its owner reads it.

    A version of a client's memory is written when the client has trained, whether or not its update arrives; the server says
    which version counts.

    Args:
        state: the folder.
    """

    def __init__(self, state: Path) -> None:
        self.state = state

    def get(self, run: str, client_id: int, round: int) -> State:
        """Return what a client kept after a round.

        Raises:
            MessageError: if that is not there.
        """
        file = self._file(run, client_id, round)
        try:
            return unsealed(bytes_of(file, _MOST_BYTES))
        except Exception as error:
            raise MessageError(
                f"what client {client_id} kept after round {round} cannot be read ({type(error).__name__}): bring the site's "
                f"{file.relative_to(self.state)} back, or start a new run"
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
        return self.state / "memory" / run / str(client_id) / f"round_{round:09d}.safetensors"

    def other_draw(self, now: Mapping[str, list[int]], *, keep: bool) -> str | None:
        """Return why clients would hold out other samples than in earlier runs, or write down what they do.

        What a server says of the draw counts the first time. Otherwise it would learn of samples that another run trains on.

        Args:
            now: client -> seed and number of the draw.
            keep: whether it is written.
        """
        file = self.state / "holdout.json"
        try:
            drawn = json_of(file, {}) if is_there(file) else {}
            whole = all(isinstance(one, list) and list(map(type, one)) == [int, int] for one in drawn.values())
        except CheckpointError:
            whole = False
        if not whole:
            return (
                "holdout.json, beside audit.jsonl, is damaged: have its operator bring it back, or remove it and lose what "
                "earlier runs have held out"
            )
        for name in now:
            if drawn.get(name, now[name]) != now[name]:
                before, after = (f"partition.holdout_seed={of} and as client {k}" for of, k in (drawn[name], now[name]))
                return (
                    f"{name} held samples out by {before} in earlier runs, and would now hold out others, by {after}: take the "
                    "former, or have its operator remove holdout.json, beside audit.jsonl"
                )
        if keep and now.keys() - drawn.keys():
            write_synced(file, [sealed_json({**drawn, **now}).encode()])
        return None

    def keep_message(self, message: Message, content: bytes) -> None:
        """Keep a message, for ``client.py verify``, unless the disk is nearly full: a server decides how many there are."""
        if shutil.disk_usage(self.state).free - len(content) < _LEFT_FREE:
            return
        round, client = message.body.get("round", 0), message.body.get("client", message.body.get("model", ""))
        file = self.state / "letters" / message.run / f"{round:09d}_{message.kind}_{client}"
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_bytes(content)


def messages_of(settings: SiteSettings, client: str, round: int, run: str) -> tuple[int, list[bytes]]:
    """Return a client's number, and the messages that led to its update of a round, which the site has kept.

    Raises:
        CheckpointError: if it has not.
    """
    folder = settings.state / "letters" / str(run)
    hellos = sorted(folder.glob("*_hello_*"))
    if not hellos:
        raise CheckpointError(
            f"Expected the messages of the run in {folder}, but there are none: give keep_letters: true before a run, and "
            "leave 1 GB of the disk free."
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
