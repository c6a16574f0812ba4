"""One LoRA step of a client under FSDP2 on two CPU processes, beside the same step in one: figures of docs/large_models.md.

Run it with ``PYTHONPATH=src torchrun --nproc_per_node=2 benchmarks/mesh_client.py``.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from fedfacet import state
from fedfacet.adapters import LoRA
from fedfacet.clients.trainer import ClientTrainer
from fedfacet.models.causal_lm import CausalLM
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Batch, State


def made(dtype: str) -> CausalLM:
    """Return a model with adapters, the same in every process."""
    torch.manual_seed(0)
    model = CausalLM(80, (40,), hidden_size=64)
    LoRA(r=4, base_dtype=dtype).fit(model)
    return model


def step(model: CausalLM, batch: Batch) -> torch.Tensor:
    """Take a step of SGD, and return the loss before it."""
    loss = ClassificationObjective(model).training_step(batch, 0)
    loss.backward()
    torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.5).step()
    return loss.detach()


def main() -> None:
    """Print the figures in the first process."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randint(80, (16, 40), generator=draw), torch.randint(80, (16,), generator=draw)
    mine = slice(rank * 16 // size, (rank + 1) * 16 // size)
    for dtype in ("float32", "bfloat16"):
        alone, meshed = made(dtype), made(dtype)
        before: State = state.clone(state.travelling(alone))
        for layer in meshed.backbone.layers:  # type: ignore[union-attr]
            fully_shard(layer, mesh=mesh)
        fully_shard(meshed, mesh=mesh)
        register_fsdp_forward_method(meshed, "features")
        loss = step(alone, Batch(x, y, torch.zeros_like(y)))
        halves = step(meshed, Batch(x[mine], y[mine], torch.zeros_like(y[mine])))
        dist.all_reduce(halves)
        ours, theirs = state.travelling(alone), {n: t.full_tensor() for n, t in state.travelling(meshed).items()}
        told = {
            "loss, one process": float(loss),
            "loss, all processes": float(halves) / size,
            "largest difference of a weight": max(float((ours[name] - theirs[name]).abs().max()) for name in ours),
            "largest step of a weight": max(float((ours[name] - before[name]).abs().max()) for name in ours),
            "bytes": sum(weight.nbytes for weight in alone.parameters()),
            "bytes per process": sum(weight.to_local().nbytes for weight in meshed.parameters()),  # type: ignore[operator]
        }
        program = ClientTrainer(ClassificationObjective(meshed))
        for place in (partial(program.load, before), partial(state.digest, program.tensors)):
            try:
                place()
            except RuntimeError as error:
                told[f"fails {len(told)}"] = str(error).splitlines()[0]
        if rank == 0:
            print(dtype, *(f"  {name}: {value}" for name, value in told.items()), sep="\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
