"""How far the first steps of its training would take a client."""

from fedfacet import state
from fedfacet.answer_form import AnswerForm
from fedfacet.arguments import check_whole
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.types import Answer


class ProbeNorm(Query):
    r"""Ask for :math:`\lVert w_k^{probe} - w^t \rVert_2`, the distance that the first steps of a client's training cover.

    The probe is by definition the first ``probe_steps`` steps of what the client would do in this round if it was selected: the
    same batches, the same augmentation and dropout, the same learning rate, momentum and proximal term. So for a client that
    is selected the probe costs nothing: its training goes on from there (``starts_training``), or takes the same steps again
    with the same result where what the probe left behind was not kept. The probes of the others are discarded, and counted.
    One float leaves the client.

    Source: De Cesare et al., Federated Learning Beyond Uniform Participation, section 4.1.

    Deviation: the norm is that of the trainable parameters; the released code adds buffers. There, training goes on with a
    fresh optimizer and without the proximal term, so that a selected client's round is not what it would have been without a
    probe.

    Args:
        probe_steps: 1 or larger; the paper says one or two. A client that plans fewer steps takes those.
    """

    name = "probe_norm"
    kind = "norm"
    form = AnswerForm(low=0, high=1e100, finite=False)
    reads = frozenset({"x", "y"})
    needs_model = True
    starts_training = True

    def __init__(self, *, probe_steps: int = 2) -> None:
        check_whole("probe_steps", probe_steps)
        self.probe_steps = probe_steps

    def answer(self, context: QueryContext) -> Answer:
        """Return the distance."""
        half = context.train_until(self.probe_steps)
        trained = {name: half.weights[name] for name, part in context.model.named_parameters() if part.requires_grad}
        moved = state.subtract({name: tensor.cpu().contiguous() for name, tensor in trained.items()}, context.weights)
        return Answer(state.norm(moved), floats_up=1, samples=context.looked_at + half.num_seen)
