"""What arrives over a line that loses packets: right on average, whole where nothing is lost, counted as it arrives."""

import numpy as np
import pytest
import torch

from fedfacet import state
from fedfacet.compatibility import check_pairs, check_transforms
from fedfacet.devices.synthetic import LognormalDevices, UniformDevices
from fedfacet.errors import ConfigError
from fedfacet.storage import checkpoint
from fedfacet.transforms import PacketLoss, SignFlip
from fedfacet.types import ClientUpdate

UP = np.array([4.0, 1.0, 3.0, 2.0])


def update_of(client_id, delta, buffers=None):
    return ClientUpdate(client_id, delta, buffers or {}, 10, 5, 5.0, {"loss_sum": 1.0, "num_seen": 10})


def lossy(**settings):
    transform = PacketLoss(**{"insufficient": 0.5, "rate": 0.4, "packet_floats": 3} | settings)
    transform.on_lines(UP)
    return transform


def test_the_slowest_lines_lose_and_the_others_send_again():
    transform = PacketLoss(insufficient=0.5, rate=0.2)
    assert transform.on_lines(UP) == pytest.approx([4.0 * 0.8, 1.0, 3.0 * 0.8, 2.0])
    delta = {"a": torch.ones(5000)}
    lost = [transform.apply(update_of(k, delta), np.random.default_rng(0)).num_lost > 0 for k in range(4)]
    assert lost == [False, True, False, True]
    assert PacketLoss(insufficient=0.0).on_lines(UP) == pytest.approx(0.9 * UP)
    assert PacketLoss(insufficient=1.0).on_lines(UP) == pytest.approx(UP)


def test_the_defaults_are_those_of_the_released_code():
    """It keeps a number with a chance of 1 - .1 and multiplies it by 1 / (1 - .1); 70 % of clients have fast lines."""
    transform = PacketLoss(packet_floats=1)
    slow = transform.on_lines(np.arange(1.0, 11.0)) == np.arange(1.0, 11.0)
    assert slow.tolist() == [True] * 3 + [False] * 7
    sent = transform.apply(update_of(0, {"a": torch.full((1000,), 9.0)}), np.random.default_rng(0)).delta["a"]
    assert sent.unique().tolist() == [0.0, 10.0]
    assert 0.85 < (sent > 0).double().mean() < 0.95


def test_whole_packets_are_lost_across_tensors_and_the_rest_is_scaled():
    delta = {"a": torch.arange(1.0, 8.0).view(7, 1), "b": torch.arange(8.0, 12.0, dtype=torch.float64)}
    buffers = {"mean": torch.arange(12.0, 14.0), "batches": torch.tensor(7)}
    transform, seen = lossy(), set()
    for seed in range(60):
        sent = transform.apply(update_of(1, delta, buffers), np.random.default_rng(seed))
        whole = torch.cat([t.double().flatten() for t in (*sent.delta.values(), sent.buffers["mean"])])
        packets = whole.split(3)
        lost = [bool((packet == 0).all()) for packet in packets]
        kept = torch.cat([torch.zeros(len(p)) if gone else torch.ones(len(p)) for p, gone in zip(packets, lost, strict=True)])
        assert whole == pytest.approx((torch.arange(1.0, 14.0) * kept / 0.6).numpy(), rel=1e-6)
        assert sent.num_lost == 13 - int(kept.sum())
        assert sent.buffers["batches"] == 7
        assert [t.dtype for t in sent.delta.values()] == [t.dtype for t in delta.values()]
        seen.add(tuple(lost))
    assert len(seen) > 10


def test_an_update_is_right_on_average_and_shorter_without_compensation():
    """4,000 draws: a mean is within four standard errors."""
    delta = {"a": torch.tensor([1.0, -2.0, 3.0, 4.0])}
    for compensation, expected in (("scale", 1.0), ("none", 0.6)):
        transform, generator = lossy(compensation=compensation, packet_floats=1), np.random.default_rng(5)
        drawn = torch.stack([transform.apply(update_of(1, delta), generator).delta["a"] for _ in range(4000)])
        error = 4 * drawn.std(dim=0) / 4000**0.5
        assert ((drawn.mean(dim=0) - expected * delta["a"]).abs() < error).all()


def test_without_loss_nothing_changes(tiny_federation):
    devices = LognormalDevices()
    plain = tiny_federation(devices=devices, cohort_size=4)
    without = tiny_federation(devices=devices, cohort_size=4, transforms=[PacketLoss(rate=0.0, insufficient=0.5)])
    told = [[federation.run_round().metrics for _ in range(2)] for federation in (plain, without)]
    assert repr(told[0]) == repr(told[1])
    assert state.digest(plain.state.model) == state.digest(without.state.model)


def test_the_ledger_counts_what_arrives_and_the_clock_what_is_sent_again(tiny_federation):
    devices = UniformDevices()
    plain = tiny_federation(devices=devices, cohort_size=4).run_round()
    everybody = tiny_federation(
        devices=devices, cohort_size=4, transforms=[PacketLoss(rate=0.5, insufficient=1.0, packet_floats=1)]
    )
    lossy = everybody.run_round()
    assert 0.35 < lossy.ledger.floats_up / plain.ledger.floats_up < 0.65
    assert lossy.metrics["sim/seconds"] == plain.metrics["sim/seconds"]
    nobody = tiny_federation(devices=devices, cohort_size=4, transforms=[PacketLoss(rate=0.5, insufficient=0.0)])
    again = nobody.run_round()
    assert again.ledger.floats_up == plain.ledger.floats_up
    assert again.metrics["sim/upload"] == pytest.approx(2 * plain.metrics["sim/upload"])


def test_a_run_that_resumes_loses_the_same_packets(tiny_federation, tmp_path):
    def make():
        loss = PacketLoss(rate=0.5, insufficient=0.5, packet_floats=1)
        return tiny_federation(devices=LognormalDevices(), cohort_size=4, rounds=3, transforms=[loss])

    whole, first, second = make(), make(), make()
    told = [whole.run_round() for _ in range(3)]
    told_in_parts = [first.run_round()]
    checkpoint.save(tmp_path / "last.ckpt", first.state, {})
    second.restore(checkpoint.load(tmp_path / "last.ckpt")[0])
    told_in_parts += [second.run_round() for _ in range(2)]
    assert repr([r.metrics for r in told]) == repr([r.metrics for r in told_in_parts])
    assert [r.ledger.floats_up for r in told] == [r.ledger.floats_up for r in told_in_parts]
    assert len({r.ledger.floats_up for r in told}) > 1
    assert state.digest(whole.state.model) == state.digest(second.state.model)


def test_it_is_refused_without_devices():
    with pytest.raises(ConfigError, match=r"^Expected a part that provides 'devices', which transforms=PacketLoss requires"):
        check_pairs({"transforms.0": SignFlip(), "transforms.1": PacketLoss(), "devices": None}, {})


def test_nothing_happens_to_an_update_that_is_on_its_way(tiny_clients):
    check_transforms(tiny_clients(transforms=[SignFlip(), PacketLoss()]))
    with pytest.raises(ConfigError, match=r"^Expected PacketLoss to be the last transform, .* but SignFlip comes after it"):
        check_transforms(tiny_clients(transforms=[PacketLoss(), SignFlip()]))


@pytest.mark.parametrize("wrong", [{"rate": 1.0}, {"insufficient": 1.5}, {"packet_floats": 0}, {"compensation": "count"}])
def test_bad_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PacketLoss(**wrong)
