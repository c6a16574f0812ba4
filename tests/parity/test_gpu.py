"""A GPU gives the CPU's numbers up to rounding, and each engine there the numbers of the others."""

import dataclasses

import pytest
import torch

from fedfacet import build as build_module
from fedfacet import config, state

pytestmark = pytest.mark.gpu

JOB = (
    "experiment=digits_gsc", "federation.rounds=1", "federation.cohort_size=3", "partition.scale=0.1", "local.batch_size=8",
    "local.unit=steps", "local.amount=3", "selector=uniform", "threads=1", "callbacks=evaluate", "logger=[]",
)  # fmt: skip


@pytest.fixture(autouse=True)
def put_back():
    """A job on a GPU has torch take deterministic algorithms, and settles its threads."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def one_round(*overrides):
    """Return the metrics and the model after one round of the main job, made short."""
    job, _ = config.compose_job("train", [*JOB, *overrides])
    build_module.settle(job)
    federation = build_module.build(job, None)
    try:
        metrics = dict(federation.run_round().metrics)
    finally:
        federation.engine.close()
    assert {tensor.device.type for tensor in federation.state.model.values()} == {"cpu"}
    return metrics, federation.state.model


class MadeWhenAskedFor:
    """Inputs that do not lie in memory, as those of image files do not."""

    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs)

    def fetch(self, indices):
        return self.inputs.fetch(indices)


@pytest.mark.parametrize("where", [lambda inputs: inputs, MadeWhenAskedFor])
def test_a_batch_on_the_gpu_is_the_batch_on_the_cpu(where):
    job, _ = config.compose_job("train", list(JOB))
    dataset = build_module.load_data(job).dataset
    dataset = dataclasses.replace(dataset, inputs=where(dataset.inputs))
    indices = dataset.train[:5]
    ours, theirs = dataset.batch(indices, "cuda"), dataset.batch(indices, "cpu")
    for name in ("x", "y", "a"):
        assert getattr(ours, name).is_cuda
        torch.testing.assert_close(getattr(ours, name).cpu(), getattr(theirs, name))


@pytest.mark.parametrize("extra", [(), ("memory_format=channels_last",), ("correction=proximal",)])
def test_one_round_is_the_cpus_up_to_rounding(extra):
    _, ours = one_round("engine.device=cuda", *extra)
    _, theirs = one_round("engine.device=cpu", *extra)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-4)


@pytest.mark.parametrize("engine", [("engine=workers", "engine.workers=2", "engine.device=cuda:0"), ("engine=debug",)])
def test_exact_engines_agree_to_the_last_bit(engine):
    metrics, model = one_round("engine.device=cuda:0")
    others, other = one_round(*engine)
    assert repr(others) == repr(metrics)
    assert state.digest(other) == state.digest(model)


def rounds(number, *overrides):
    """Return the digests of the model and of clients' memories after some rounds, and why the engine fell back."""
    job, _ = config.compose_job("train", [*JOB, "federation.rounds=3", *overrides])
    build_module.settle(job)
    federation = build_module.build(job, None)
    try:
        for _ in range(number):
            federation.run_round()
        reason = getattr(federation.engine, "fallback_reason", None)
        memories = {client: state.digest(kept) for client, kept in federation.state.memory.items()}
        return state.digest(federation.state.model), memories, federation.state.model, reason
    finally:
        federation.engine.close()


METHODS = {
    "fedavg": (),
    "fedprox": ("method=fedprox",),
    "scaffold": ("method=scaffold", "optimizer.momentum=0"),
    "feddyn": ("method=feddyn",),
    "moon": ("method=moon",),
    "dp_fedavg": ("method=dp_fedavg", "selector=poisson"),
    "momentum, clipped": ("optimizer.momentum=0.9", "local.max_grad_norm=0.5", "scheduler=exponential"),
    "bfloat16": ("precision=bf16-mixed",),
    "dropout": ("model=mobilenet_v2_gn",),
    "running statistics": ("model=resnet8",),
}


@pytest.mark.parametrize("method", METHODS)
def test_recorded_steps_come_to_the_same_bit_for_bit(method):
    """After the first two clients of a kind, all are trained by recorded steps alone."""
    setting = (*METHODS[method], "engine.device=cuda:0")
    ours, theirs = (rounds(3, f"engine={engine}", *setting) for engine in ("graphs", "sequential"))
    assert ours[3] is None
    assert ours[:2] == theirs[:2]


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("bfloat16", "dp_fedavg")])
def test_clients_side_by_side_stay_near(method, caplog, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee")
    setting = (*METHODS[method], "engine.device=cuda:0")
    ours, theirs = (rounds(2, f"engine={engine}", *setting) for engine in ("vectorized", "sequential"))
    assert ours[3] is None
    assert not [record for record in caplog.records if "kernel by kernel" in record.message]
    for name, tensor in theirs[2].items():
        torch.testing.assert_close(ours[2][name], tensor, rtol=0, atol=2e-3)


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_a_round_brings_back_two_transfers_for_each_client():
    """Its losses and its update; with the model sent tensor by tensor there were as many as it has tensors."""
    job, _ = config.compose_job("train", [*JOB, "engine.device=cuda:0", "callbacks=[]"])
    build_module.settle(job)
    federation = build_module.build(job, None)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        federation.run_round()
    copies = sum(event.count for event in profile.key_averages() if event.key.startswith("Memcpy DtoH"))
    assert copies == 2 * 3


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # torch's advice to round more, when it compiles
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # torch makes its first one so, and hides the warning
@pytest.mark.parametrize(
    ("settings", "tolerance"), [("engine=vectorized", 1e-4), ("compile=true", 1e-4), ("precision=bf16-mixed", 2e-2)]
)
def test_what_sums_in_another_order_stays_near(settings, tolerance):
    _, model = one_round("engine.device=cuda")
    _, other = one_round(settings, "engine.device=cuda")
    for name, tensor in model.items():
        torch.testing.assert_close(other[name], tensor, rtol=0, atol=tolerance)


def test_more_threads_than_one_wait_for_a_gpu_in_vain():
    job, _ = config.compose_job("train", [*JOB, "engine.device=cuda", "threads=null"])
    build_module.settle(job)
    assert job.threads == 1
