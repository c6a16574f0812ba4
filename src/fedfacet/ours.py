"""Which parts are the package's own."""


def is_ours(part: object) -> bool:
    """Tell whether a part's class is of this package, whose tests hold it to its contract, or somebody else's."""
    return type(part).__module__.startswith("fedfacet.")
