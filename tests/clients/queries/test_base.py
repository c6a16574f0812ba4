import pytest

from fedfacet.clients.queries.base import Query


@pytest.mark.parametrize("given", ["name", "needs_model"])
def test_a_query_says_its_name_and_whether_it_needs_the_model(given):
    lacking = {"name": "needs_model", "needs_model": "name"}[given]
    with pytest.raises(TypeError, match=f"Expected a query with `{lacking}`, but Nameless has none"):
        type("Nameless", (Query,), {given: True})
