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
