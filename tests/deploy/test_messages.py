"""Messages: bytes that safetensors would write too, and how many of them a server holds at a time."""

import hashlib
import json
from collections import deque

import pytest
import safetensors.torch
import torch

from fedfacet.deploy import protocol
from fedfacet.deploy.protocol import Message, MessageError, pack, unpack
from fedfacet.deploy.settings import SiteSettings
from fedfacet.deploy.site import Site
from fedfacet.deploy.transport import Ticket


def tensors():
    made = {str(kind): (torch.arange(6) % 2).to(kind).view(2, 3) for kind in protocol._CODES}
    return {**made, "ä": torch.zeros(0, 4), "one": torch.tensor(1.5), "turned": torch.arange(6.0).view(2, 3).T}


def test_a_message_is_the_file_that_safetensors_writes():
    message = Message("update", "a" * 32, {"client": 3, "text": 'ü "'}, {"delta": tensors(), "extras": {"c": torch.ones(2)}})
    content = pack(message)
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size])["__metadata__"]
    named = {f"delta|{name}": tensor.contiguous() for name, tensor in tensors().items()} | {"extras|c": torch.ones(2)}
    assert safetensors.torch.save(named, metadata) == content
    read = unpack(content, len(content))
    assert (read.kind, read.run, dict(read.body)) == (message.kind, message.run, message.body)
    for name, tensor in tensors().items():
        assert read.bundles["delta"][name].dtype == tensor.dtype
        assert torch.equal(read.bundles["delta"][name], tensor)


def test_tensors_that_share_memory_are_whole_in_a_message():
    rows = torch.arange(6.0).view(2, 3)
    content = pack(Message("update", "a" * 32, {}, {"delta": {"a": rows, "b": rows[1], "c": rows.expand(2, 2, 3)}}))
    read = unpack(content, len(content)).bundles["delta"]
    assert torch.equal(read["a"], rows)
    assert torch.equal(read["b"], rows[1])
    assert torch.equal(read["c"], rows.expand(2, 2, 3))
    with pytest.raises(MessageError, match=r"delta\|a is of torch\.complex64, which no message carries"):
        pack(Message("update", "a" * 32, {}, {"delta": {"a": torch.ones(2, dtype=torch.complex64)}}))


PLACES = {
    "beyond the end": {"data_offsets": [0, 32], "shape": [8]},
    "of another size": {"shape": [5]},
    "a negative size": {"shape": [-2, -2]},
    "a broken size": {"shape": [2.0, 2]},
    "backwards": {"data_offsets": [16, 0]},
    "a huge size": {"shape": [2**62, 2**62, 0], "data_offsets": [0, 0]},
    "an unknown kind": {"dtype": "F4"},
    "more than a place": {"name": "x"},
    "no shape": {"shape": None},
    "before the start": {"data_offsets": [-16, 0]},
}


@pytest.mark.parametrize("what", PLACES)
def test_a_message_of_a_stranger_whose_tensors_are_nowhere(what):
    content = pack(Message("update", "a" * 32, {}, {"delta": {"w": torch.ones(4)}}))
    size = int.from_bytes(content[:8], "little")
    table = json.loads(content[8 : 8 + size])
    table["delta|w"] |= PLACES[what]
    told = json.loads(table["__metadata__"]["fedfacet"])

    def sealed(seal):
        table["__metadata__"]["fedfacet"] = json.dumps({**told, "seal": seal}, sort_keys=True)
        head = json.dumps(table).encode()
        return len(head).to_bytes(8, "little") + head + content[8 + size :]

    forged = sealed(hashlib.sha256(sealed("0" * 64)).hexdigest())
    with pytest.raises(MessageError, match=r"^it cannot be read \((Value|Key|Type|Runtime)Error: "):
        unpack(forged, len(forged))


class OneByOne:
    """Sites that answer one message at a poll, and notes how many answers are still held then."""

    class Answer(bytes):
        alive = 0

        def __new__(cls, content):
            cls.alive += 1
            return super().__new__(cls, content)

        def __del__(self):
            OneByOne.Answer.alive -= 1

    def __init__(self, folder):
        found = (Site(SiteSettings.read(folder / f"site_{number}" / "client.yaml")) for number in (0, 1))
        self.by_name = {site.settings.site: site for site in found}
        self.waiting, self.number, self.held = deque(), 0, []

    def sites(self):
        return dict.fromkeys(self.by_name, True)

    def send(self, site, message):
        self.number += 1
        self.waiting.append((Ticket(site, self.number), message))
        return self.waiting[-1][0]

    def poll(self, seconds):
        self.held.append(self.Answer.alive)
        ticket, message = self.waiting.popleft()
        return [(ticket, self.Answer(self.by_name[ticket.site].answer(message)))]

    def cancel(self, tickets):
        pass

    def close(self):
        pass


@pytest.mark.parametrize("aggregator", ["fedavg", "fedavgm"])
def test_an_update_is_let_go_of_before_the_next_is_waited_for(aggregator, pilot, deployed, tmp_path):
    sites = OneByOne(pilot)
    there = deployed("method=fedavg", f"aggregator={aggregator}", run_dir=tmp_path, transport=sites)
    for tensor in there.facts.model.values():
        assert tensor.untyped_storage().nbytes() <= 8, "of the first model the server keeps shapes alone"
    sites.held.clear()
    there.run_round()
    there.run_round()
    assert len(sites.held) >= 2 * 3
    assert sites.held == [0] * len(sites.held)
