"""The distributed engine by itself; ``tests/cli/test_distributed.py`` starts whole runs."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

from fedfacet import state
from fedfacet.engines.distributed import DistributedEngine
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.parallel.processes import process_context
from fedfacet.types import Broadcast, ClientTask

TORCHRUN = {"TORCHELASTIC_RUN_ID": "run", "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


def found_by(script, folder):
    """Run a script beside this one in a process that the server of workers' processes starts; return what it has found."""
    script = Path(__file__).with_name(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(script.parent)
        patch.setattr(sys, "argv", [str(script)])
        process = process_context().Process(target=runpy.run_path, args=(str(script),), kwargs={"run_name": "__main__"})
        process.start()
    process.join(300)
    assert process.exitcode == 0
    return json.loads((folder / "found.json").read_text())


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """What two ranks found; see ``two_ranks.py``."""
    return found_by("two_ranks.py", tmp_path_factory.mktemp("two_ranks"))


@pytest.fixture(scope="module")
def lost_ranks(tmp_path_factory):
    """What five ranks found, three of which died; see ``lost_ranks.py``."""
    return found_by("lost_ranks.py", tmp_path_factory.mktemp("lost_ranks"))


@pytest.fixture(scope="module")
def one_copy_ranks(tmp_path_factory):
    """What four ranks found, said to be of two machines; see ``one_copy_ranks.py``."""
    return found_by("one_copy_ranks.py", tmp_path_factory.mktemp("one_copy_ranks"))


# One process


def test_alone_it_works_like_the_sequential_engine(tiny_clients):
    clients = tiny_clients()
    engines = SequentialEngine(device="cpu"), DistributedEngine(device="cpu")
    model = state.clone(clients.objective.model.state_dict())
    digests, counts = [], []
    for engine in engines:
        engine.setup(clients)
        updates = engine.run(ClientTask(client, 1, 0, Broadcast(model)) for client in (2, 0))
        digests.append([(update.client_id, state.digest(update.delta)) for update in updates])
        counts.append(engine.evaluate(model, [clients.dataset.test]))
        engine.close()
        engine.close()
    assert digests[0] == digests[1]
    assert counts[0] == counts[1]
    assert engines[1].share("value") == "value"
    assert engines[1].one_copy(lambda: "data") == "data"


@pytest.mark.parametrize(("num_accelerators", "backend"), [(4, "nccl"), (1, "gloo")])
def test_the_ranks_of_a_machine_share_out_its_accelerators(monkeypatch, num_accelerators, backend):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_accelerators)
    engine = DistributedEngine()
    assert engine.device == f"cuda:{1 % num_accelerators}"
    assert engine._backend == backend
    assert DistributedEngine(device="cpu")._backend == "gloo"


@pytest.mark.parametrize("arguments", [{"backend": "mpi"}, {"timeout_seconds": 0}])
def test_impossible_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match=f"engine.{next(iter(arguments))}"):
        DistributedEngine(**arguments)


# Two processes


def test_the_script_tests_what_it_means_to(two_ranks):
    assert two_ranks["backend"] == "gloo"


def test_a_slow_rank_gets_the_two_tasks_that_it_begins_with(two_ranks):
    """The other does all the rest meanwhile, also where rank 0 is the slow one, which takes a task only when it is idle."""
    assert two_ranks["waited"] == [[1, 13], [12, 2]]
    assert two_ranks["answers_in_order"] == [True, True]


def test_updates_are_those_of_the_sequential_engine_in_the_same_order(two_ranks):
    sequential, distributed = two_ranks["updates"]
    assert len(sequential) == 7
    assert distributed == sequential
    assert two_ranks["one"]
    assert two_ranks["nobody"] == 0


def test_tiny_clients_travel_by_the_handful_with_the_same_updates(two_ranks):
    """Of 56, at least eight handfuls a rank."""
    assert two_ranks["handfuls"]
    assert max(two_ranks["posted"]) > 1
    assert two_ranks["failure_in_a_handful"][:2] == ["ValueError", "Expected `seed` to be 0 or larger, but got -1."]


def test_what_a_client_keeps_does_not_hold_on_to_its_update(two_ranks):
    assert two_ranks["memory_alone"] == [True] * 7


def test_answers_and_evaluation_are_those_of_the_sequential_engine(two_ranks):
    for name in ("answers", "counts", "few", "predictions"):
        assert two_ranks[name][0] == two_ranks[name][1], name


def test_models_of_several_shapes_travel_too(two_ranks):
    for name in ("shapes", "shapes_answers", "shapes_counts"):
        assert two_ranks[name][0] == two_ranks[name][1], name
    small, mixed = two_ranks["updates"][0], two_ranks["shapes"][0]
    assert [ours == theirs for ours, theirs in zip(small, mixed, strict=True)] == [False, False, False, True, False, True, True]
    assert two_ranks["shapes_counts"][0] != two_ranks["counts"][0]


def test_a_round_given_up_is_put_down_by_all(two_ranks):
    assert two_ranks["after_giving_up"]
    assert two_ranks["asked"] < 14, "rank 1 went on to the end"


def test_a_failure_elsewhere_is_raised_here_with_client_round_and_rank(two_ranks):
    kind, message, note = two_ranks["failure"]
    assert (kind, message) == ("ValueError", "Expected `seed` to be 0 or larger, but got -1.")
    assert note.startswith("It was raised by client 3 in round 2, on rank 1:\nTraceback")
    assert two_ranks["failing_query"][:2] == ["RuntimeError", "Unpicklable: no answer"]
    assert "client 3 in round 2, on rank 1" in two_ranks["failing_query"][2]
    assert two_ranks["failing_evaluation"][0] == "ValueError"
    assert two_ranks["failing_evaluation"][1].startswith("Expected a model of one of the 2 shapes")
    assert two_ranks["after_failures"]


def test_a_second_job_may_follow_one_that_was_given_up(two_ranks):
    assert two_ranks["second_job"]
    assert two_ranks["rank_1"]["shared"] == [{"seed": 7}, "second job", "third job"]
    assert two_ranks["status"] == 0


def test_a_serving_rank_keeps_few_of_the_updates_that_it_sent(two_ranks):
    """Of 24 times 16 MB it may have one or two that rank 0 has not taken, and what it works at."""
    assert two_ranks["large"]
    if two_ranks["rank_1"]["held"] is None:
        pytest.skip("no /proc tells what a process holds")
    assert two_ranks["rank_1"]["held"] < 10 * (16 << 20)


def test_only_rank_0_can_drive(two_ranks):
    assert two_ranks["rank_1"]["rank"] == 1
    assert two_ranks["rank_1"]["driving"][0] == "RuntimeError"


# Five processes, of which three die


def test_a_rank_may_die_at_any_moment(lost_ranks):
    """Before it hands on the model, while sums become one, and while it predicts."""
    assert lost_ranks["living"][0] == [3, 4]
    assert lost_ranks["living"][-1] == [4]
    alone, *others = lost_ranks["sums"]
    assert others == [alone] * len(others)
    assert lost_ranks["counts"][0] == lost_ranks["counts"][1]


# Four processes, on two machines by what they are told


def test_ranks_know_who_is_on_their_machine(one_copy_ranks):
    assert [rank["same_machine"] for rank in one_copy_ranks["ranks"]] == [True] * 3


def test_the_ranks_of_a_machine_hold_one_copy_that_the_first_has_loaded(one_copy_ranks):
    """Rank 2, which dies later, has loaded for rank 3; what one rank writes the other reads."""
    ranks = one_copy_ranks["ranks"]
    assert [rank["made"][0] for rank in ranks] == [1, 0, 0]
    assert [rank["x"] for rank in ranks] == [[-1, -2, 2, 3], [-1, -2, 2, 3], [-3, -4, 2, 3]]
    assert {(rank["name"], rank["y"]) for rank in ranks} == {("samples", sum(range(1 << 16)))}


def test_what_cannot_be_shared_is_loaded_by_each(one_copy_ranks):
    """It cannot be pickled; there is no memory to share; or the rank that should have loaded it has died."""
    assert one_copy_ranks["ends"] == [0, 0, 9]
    assert [rank["made"][1:] for rank in one_copy_ranks["ranks"]] == [[1, 1, 1], [1, 1, 0], [1, 1, 1]]
