"""Does a live object still say what we want it to? Pure.

Only what we want is compared: other fields belong to defaults and to other people. Quantities are
equal by value, because the API server rewrites them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pd_operator import names, quantity
from pd_operator.objects.meta import MERGE_KEYS
from pd_operator.resource import Manifest


def drifted(wanted: Manifest, live: Mapping[str, Any]) -> bool:
    """True where applying `wanted` would change something."""
    annotations = live["metadata"].get("annotations", {})
    mark = wanted["metadata"]["annotations"][names.APPLIED_HASH]
    return annotations.get(names.APPLIED_HASH) != mark or not _holds(wanted, live)


def _holds(wanted: Any, live: Any) -> bool:
    if wanted == live or (live is None and not wanted):
        return True  # the API server drops what is 0, false or empty
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            _holds(value, live.get(name)) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return _list_holds(wanted, live)
    return quantity.equal(wanted, live)


def _list_holds(wanted: list[Any], live: Any) -> bool:
    if not wanted:
        return True  # what others put into it is theirs
    if not isinstance(live, list):
        return False
    key = _key(wanted)
    if key is None:
        same = len(wanted) == len(live)
        return same and all(_holds(a, b) for a, b in zip(wanted, live, strict=True))
    found = {item.get(key): item for item in live if isinstance(item, dict)}
    return all(item[key] in found and _holds(item, found[item[key]]) for item in wanted)


def _key(items: list[Any]) -> str | None:
    """The field by which the API server matches the items of such a list."""
    return next(
        (key for key in MERGE_KEYS if all(isinstance(i, dict) and key in i for i in items)), None
    )
