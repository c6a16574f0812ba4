"""Independent selection of every client."""

from fedfacet.selectors.base import ClientSelector, Taxonomy, numbers
from fedfacet.types import SelectionContext, ServerState


class PoissonSelector(ClientSelector):
    r"""Every available client takes part with probability q, whoever else does.

    .. math:: q = \frac{m}{N},

    with m the cohort's size and N the number of clients; so m is what cohorts have on average, and a round may be without any
    client. Accountants of differential privacy assume such sampling: with ``privacy=central`` epsilon grows more slowly
    than if everybody took part. Clients who are away lower the number of those who take part, and nobody's probability rises.

    Source: McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018, arXiv:1710.06963, algorithm 1.
    """

    taxonomy = Taxonomy("privacy", "-", ("θ",), "-", "probability", "-")

    sizes_itself = True

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return those whose draw says so, in ascending order."""
        probability = self.sampling_rate(context.cohort_size, context.num_clients)
        available, drawn_K = numbers(context.available), context.rng.random(context.num_clients) < probability
        return available[drawn_K[available]].tolist()  # type: ignore[no-any-return]

    def sampling_rate(self, cohort_size: int, num_clients: int) -> float:
        """Return q in (0, 1]."""
        return cohort_size / num_clients
