"""What a round takes on a client's device."""

import math

from fedfacet.answer_form import AnswerForm
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.query import needs_of
from fedfacet.types import Answer


class Resources(Query):
    r"""Ask for the seconds that a client needs to receive the model, to train and to send its update.

    That is :math:`t^D_k, t^{UD}_k, t^{UL}_k` of a round of the whole model without jitter, as a client knows its device and its
    line. With ``noise`` each is multiplied by :math:`e^{\nu z}`, z standard normal, drawn anew in every round: what clients
    know of themselves is not exact. Three numbers leave the client; nothing passes through a model.

    Source: Nishio and Yonetani, Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge, ICC 2019,
    arXiv:1804.08333, protocol 2, step "resource request".

    Args:
        noise: nu, of the numbers as a part of them, in [0, 2].

    Raises:
        ValueError: if the noise is out of range.
    """

    name = "resources"
    kind = "resources"
    form = AnswerForm(shape=(3,), low=0, high=1e300, finite=False)
    reads = frozenset[str]()
    needs_model = False

    def __init__(self, *, noise: float = 0.0) -> None:
        if not 0 <= noise <= 2:
            raise ValueError(f"Expected `noise` in [0, 2], but got {noise}.")
        self.noise = noise

    def answer(self, context: QueryContext) -> Answer:
        """Return the three, as a list.

        Raises:
            ConfigError: without devices.
        """
        seconds = list(needs_of(context)[:3])
        if self.noise:
            luck = context.stream("resource-noise").standard_normal(3).tolist()
            seconds = [part * math.exp(self.noise * z) for part, z in zip(seconds, luck, strict=True)]
        return Answer(seconds, floats_up=3, samples=0)


class UploadSeconds(Query):
    """Ask for the seconds that a client needs to send its update, by which the server knows how fast its line is.

    It is that of a round of the whole model without jitter. One number leaves the client; nothing passes through a model.
    """

    name = "upload_seconds"
    kind = "resources"
    form = AnswerForm(low=0, high=1e300, finite=False)
    reads = frozenset[str]()
    needs_model = False

    def answer(self, context: QueryContext) -> Answer:
        """Return the seconds.

        Raises:
            ConfigError: without devices.
        """
        return Answer(needs_of(context).upload, floats_up=1, samples=0)


class RoundJoules(Query):
    """Ask for the energy that a round takes on a client's device: to receive the model, to train and to send its update.

    It is that of a round of the whole model without jitter, in joules. One number leaves the client; nothing passes
    through a model.

    Source: Cho et al., FLAME: Federated Learning Across Multi-device Environments, arXiv:2202.08922, where devices report the
    energy that they have used.
    """

    name = "round_joules"
    kind = "resources"
    form = AnswerForm(low=0, high=1e300, finite=False)
    reads = frozenset[str]()
    needs_model = False

    def answer(self, context: QueryContext) -> Answer:
        """Return the joules.

        Raises:
            ConfigError: without devices.
        """
        return Answer(needs_of(context).joules, floats_up=1, samples=0)
