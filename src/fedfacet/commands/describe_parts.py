"""Which part of the model each client holds, before any training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedfacet import state
from fedfacet.analysis.writers import Table
from fedfacet.build import build, settle
from fedfacet.commands import output_of
from fedfacet.commands.output import Output
from fedfacet.config import compose_job
from fedfacet.errors import ConfigError
from fedfacet.federation import Federation
from fedfacet.mechanisms.submodels import Submodels
from fedfacet.plots.holders import plot_holders
from fedfacet.submodels.parts import Parts

_ROUNDS = 16  # q^2 rounds of q = 2 and 4 blocks
_FEW = 12


def run(options: Sequence[str]) -> Output:
    """Return what every client would be sent, and how many clients hold which entries.

    Raises:
        ConfigError: if the options choose no parts.
    """
    output, settings = output_of(options)
    config, _ = compose_job("train", ["task=describe", *settings])
    folder = Path(config.paths.output_dir)
    settle(config)
    federation = build(config, folder)
    if federation.find(Submodels) is None:
        raise ConfigError(
            "Expected clients that hold parts of the model, but all hold all of it: choose capacity=largest and a submodel, "
            "such as submodel=heterofl."
        )
    folder.mkdir(parents=True, exist_ok=True)
    clients = clients_of(federation)
    holders_of = {name: held for name, held in holders(federation).items() if held.ndim > 1}
    figure = folder / "holders.png"
    plot_holders(holders_of, federation.num_clients, figure)
    entries = [
        {
            "tensor": name,
            "entries": int(held.size),
            "holders_min": float(held.min()),
            "holders_mean": float(held.mean()),
            "holders_max": float(held.max()),
            "never_held": int((held == 0).sum()),
        }
        for name, held in holders_of.items()
    ]
    data = {"clients": clients, "rounds": _ROUNDS, "tensors": entries}
    return Output(output, data, tables_of(clients, entries), [figure])


def clients_of(federation: Federation) -> list[dict[str, Any]]:
    """Return what every client is sent in the first round: its rate, parameters, and multiply-adds per sample."""
    parts = _parts(federation)
    found = []
    known: dict[float, tuple[int, int]] = {}
    for client_id, rate in enumerate(parts.rates(1).tolist()):
        if rate not in known:
            sent = federation.sent(federation.state, client_id).model
            module = federation.engine.clients.program_of(sent).module
            known[rate] = state.num_floats(sent), multiply_adds(module, federation)
        floats, products = known[rate]
        samples = int(parts.num_samples_K[client_id])
        found.append({"client": client_id, "samples": samples, "rate": rate, "floats": floats, "multiply_adds": products})
    return found


def _parts(federation: Federation) -> Parts:
    held = federation.find(Submodels)
    assert held is not None
    return held.parts


def multiply_adds(module: nn.Module, federation: Federation) -> int:
    """Return the multiply-adds of a forward pass with one sample, of convolutions and matrix products."""
    clients = federation.engine.clients
    x = clients.dataset.batch(clients.dataset.test[:1], clients.device, clients.memory_format).x
    training = module.training
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module.train()(torch.cat([x, x]))  # two, for norms that see their batch
    module.train(training)
    return int(counter.get_total_flops()) // 4


def holders(federation: Federation) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Return per trainable tensor how many clients hold each entry, a mean over the first rounds if everybody takes part."""
    parts, facts = _parts(federation), federation.facts
    held = {name: torch.zeros_like(facts.model[name], dtype=torch.float64) for name in facts.parameters}
    for round in range(1, _ROUNDS + 1):
        for client_id in range(federation.num_clients):
            parts.count(held, facts.model, client_id, round)
    return {name: (counts / _ROUNDS).numpy() for name, counts in held.items()}


def tables_of(clients: Sequence[dict[str, Any]], entries: Sequence[dict[str, Any]]) -> list[Table]:
    """Return a line per kind of client, and one per tensor."""
    kinds: dict[tuple[float, int, int], list[dict[str, Any]]] = {}
    for client in clients:
        kinds.setdefault((client["rate"], client["floats"], client["multiply_adds"]), []).append(client)
    rows = []
    for (rate, floats, products), members in sorted(kinds.items(), reverse=True):
        sizes = [member["samples"] for member in members]
        numbers = ", ".join(str(member["client"]) for member in members[:_FEW]) + (", ..." if len(members) > _FEW else "")
        span = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        rows.append([f"{rate:g}", str(len(members)), numbers, span, f"{floats:,}", f"{products:,}"])
    return [
        Table("What clients hold", ["rate", "clients", "numbers", "samples", "floats sent", "multiply-adds a sample"], rows),
        Table(
            f"How many of {len(clients)} clients hold an entry, mean over {_ROUNDS} rounds of everybody",
            ["tensor", "entries", "fewest", "mean", "most", "never held"],
            [
                [
                    one["tensor"],
                    f"{one['entries']:,}",
                    *(f"{one[f'holders_{which}']:.2f}" for which in ("min", "mean", "max")),
                    f"{one['never_held']:,}",
                ]
                for one in entries
            ],
        ),
    ]
