"""What contenders without an opinion of their own on averaging and evaluation share."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from workloads import Tensors, Workload


def draw_cohort(workload: Workload) -> list[int]:
    """Return a round's clients."""
    return torch.randperm(workload.num_clients)[: workload.cohort_size].tolist()


def copy_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a model's tensors."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def average(uploads: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of models; all clients hold equally many samples."""
    return {name: torch.stack([upload[name] for upload in uploads]).mean(dim=0) for name in uploads[0]}


def first_of(server: dict[str, Tensor], half: nn.Module) -> dict[str, Tensor]:
    """Return the first entries of a model, as many as a smaller one has."""
    return {name: server[name][corner(tensor)].clone() for name, tensor in half.state_dict().items()}


def average_by_count(server: dict[str, Tensor], uploads: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of models and of first parts of them, each entry over those that have it."""
    sums = {name: torch.zeros_like(tensor) for name, tensor in server.items()}
    counts = {name: torch.zeros_like(tensor) for name, tensor in server.items()}
    for upload in uploads:
        for name, tensor in upload.items():
            sums[name][corner(tensor)] += tensor
            counts[name][corner(tensor)] += 1
    return {name: torch.where(counts[name] > 0, sums[name] / counts[name].clamp(min=1), server[name]) for name in server}


def corner(tensor: Tensor) -> tuple[slice, ...]:
    """Return where a smaller tensor lies in a larger one."""
    return tuple(slice(length) for length in tensor.shape)


@torch.no_grad()
def evaluate(model: nn.Module, data: Tensors, workload: Workload) -> tuple[float, float]:
    """Return loss and accuracy on the held-out samples."""
    model.eval()
    loss, correct = 0.0, 0
    for batch in data.held_out.split(workload.evaluation_batch_size):
        logits = model(data.x[batch])
        loss += functional.cross_entropy(logits, data.y[batch], reduction="sum").item()
        correct += int((logits.argmax(dim=1) == data.y[batch]).sum())
    return loss / len(data.held_out), correct / len(data.held_out)
