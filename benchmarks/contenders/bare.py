"""The yardstick: a plain PyTorch loop as a competent person writes it, without a framework and without tricks."""

import torch
from torch import nn
from workloads import WORKLOADS

from contenders import arguments
from contenders.plain import average, average_by_count, copy_of, draw_cohort, evaluate, first_of
from contenders.turnstile import Turnstile


def main() -> None:
    """Load weights, take SGD steps over tensors in memory, average, evaluate."""
    given = arguments.parse()
    workload = WORKLOADS[given.workload]
    data = workload.load(given.device)
    model = workload.make_model().to(given.device)
    half = workload.make_half().to(given.device) if workload.num_whole is not None else model
    server = copy_of(model)
    loss_of = nn.CrossEntropyLoss()

    def play_round() -> None:
        nonlocal server
        uploads = []
        for client in draw_cohort(workload):
            is_whole = workload.num_whole is None or client < workload.num_whole
            own = model if is_whole else half
            own.load_state_dict(server if is_whole else first_of(server, half))
            own.train()
            optimizer = torch.optim.SGD(own.parameters(), lr=workload.lr)
            mine = data.clients[client]
            for batch in mine[torch.randperm(len(mine), device=mine.device)].split(workload.batch_size):
                optimizer.zero_grad()
                loss = loss_of(own(data.x[batch]), data.y[batch])
                loss.backward()
                optimizer.step()
            uploads.append(copy_of(own))
        server = average(uploads) if workload.num_whole is None else average_by_count(server, uploads)
        model.load_state_dict(server)
        evaluate(model, data, workload)

    Turnstile("torch").serve(play_round)


if __name__ == "__main__":
    main()
