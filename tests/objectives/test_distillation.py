"""A student that learns what a teacher says."""

import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax
from torch import nn

from fedfacet.objectives.distillation import SAMPLES, TEACHER, DistillationObjective
from fedfacet.types import Broadcast, ClientStart


def objective_of(samples, teacher):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    objective = DistillationObjective(model, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    extras = {SAMPLES: torch.tensor(samples), TEACHER: teacher}
    objective.on_client_start(ClientStart(Broadcast(dict(model.state_dict()), extras), {}, 1, 0.5))
    return objective


def test_the_loss_is_the_divergence_from_the_teacher_of_these_samples():
    draw = np.random.default_rng(0)
    teacher = torch.from_numpy(draw.normal(size=(5, 3)).astype(np.float32))
    objective = objective_of([2, 3, 7, 11, 40], teacher)
    x, positions = torch.from_numpy(draw.normal(size=(3, 4)).astype(np.float32)), torch.tensor([11, 2, 40])
    p, q = softmax(teacher[[3, 0, 4]].numpy(), axis=1), softmax(objective(x).detach().numpy(), axis=1)
    loss = objective.training_step((x, torch.tensor([0, 0, 0]), positions), 0)
    assert loss.item() == pytest.approx(rel_entr(p, q).sum(axis=1).mean(), rel=1e-5)


def test_the_student_comes_to_what_the_teacher_says():
    draw = np.random.default_rng(1)
    x = torch.from_numpy(draw.normal(size=(60, 4)).astype(np.float32))
    teacher = x @ torch.from_numpy(draw.normal(size=(4, 3)).astype(np.float32))
    objective = objective_of(list(range(60)), teacher)
    optimizer = objective.configure_optimizers()
    for step in range(1500):
        optimizer.zero_grad()
        loss = objective.training_step((x, torch.zeros(60, dtype=torch.int64), torch.arange(60)), step)
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-4
    assert (objective(x).softmax(dim=1) - teacher.softmax(dim=1)).abs().max() < 0.02
