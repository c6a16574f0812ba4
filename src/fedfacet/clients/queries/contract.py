"""Which contract of a menu a client takes."""

from copy import copy

from fedfacet import rng
from fedfacet.answer_form import AnswerForm
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.contracts import Menu
from fedfacet.query import needs_of
from fedfacet.types import Answer


class Contract(Query):
    r"""Ask which item of a menu a client takes; the answer is that item's reward, 0 for none.

    Of the items that its device is quick enough for, by the seconds of a round's training, a client takes the one that is worth
    most to it (``fedfacet.contracts.Menu``). Its type :math:`\theta`, how much it is served by a reward, is its secret: drawn
    once in a run, uniformly between the menu's ``lowest`` and ``highest``. One number leaves the client, from which the server
    learns of the type in which part of that range it lies. Nothing passes through a model.

    Source: Kang et al., Incentive Mechanism for Reliable Federated Learning, IEEE Internet of Things Journal 2019; types were
    not checked against the paper.
    """

    name = "contract"
    kind = "bid"
    form = AnswerForm(low=0, high=1e300)
    reads = frozenset[str]()
    needs_model = False
    menu: Menu | None = None

    def offered(self, menu: Menu) -> "Contract":
        """Return the question as it is put in a round: with the server's menu."""
        asked = copy(self)
        asked.menu = menu
        asked.floats_down = len(menu.seconds) + len(menu.rewards) + 3  # speeds follow; and what is known of types
        return asked

    def answer(self, context: QueryContext) -> Answer:
        """Return the reward.

        Raises:
            ConfigError: without devices.
            RuntimeError: if no menu was offered.
        """
        if self.menu is None:
            raise RuntimeError("Expected a choice from a menu, but none was offered: ask `contract.offered(menu)`.")
        seconds = needs_of(context).compute
        type_ = rng.stream(context.seed, "contract-type", context.client_id).uniform(self.menu.lowest, self.menu.highest)
        item = self.menu.choice(type_, seconds)
        return Answer(0.0 if item is None else self.menu.rewards[item], floats_up=1, samples=0)
