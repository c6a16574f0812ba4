"""The names of groups of samples, for tables and pictures."""

from collections.abc import Sequence


def group_names(class_names: Sequence[str], attribute_names: Sequence[str]) -> list[str]:
    r"""Return a name on one line per group, in the order g = y * A + a.

    With one attribute value it is the class's name, with one class the attribute's.

    A name that would not be seen as it is, a newline or a blank for example, is quoted and escaped.

    Example:
        >>> group_names(["cat", "dog"], ["indoors", "outdoors"])
        ['cat, indoors', 'cat, outdoors', 'dog, indoors', 'dog, outdoors']
        >>> print(*group_names(["a", " ", "\n"], ["none"]))
        a ' ' '\n'
    """
    classes, attributes = ([_visible(name) for name in names] for names in (class_names, attribute_names))
    if len(classes) == 1 < len(attributes):
        return attributes
    return classes if len(attributes) == 1 else [f"{label}, {attribute}" for label in classes for attribute in attributes]


def _visible(name: str) -> str:
    return name if name and name.isprintable() and name == name.strip() else repr(name)
