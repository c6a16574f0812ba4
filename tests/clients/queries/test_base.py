import pytest

from fedfacet.clients.queries.base import Query


def test_a_query_says_its_name():
    with pytest.raises(TypeError, match="Expected a query with `name`, but Nameless has none"):
        type("Nameless", (Query,), {"needs_model": True})
