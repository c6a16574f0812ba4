"""JSON as its standard has it, which knows neither NaN nor infinity."""

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(content: Any) -> str:
    """Return content as indented JSON in which numbers that are not finite are null.

    Args:
        content: mappings, lists, tuples, texts and numbers.

    Example:
        >>> print(json_text({"test/acc": float("nan")}))
        {
          "test/acc": null
        }
    """
    return json.dumps(_finite(content), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
