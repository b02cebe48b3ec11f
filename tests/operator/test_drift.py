"""Drift: what counts as a change, and what the API server may do to an object freely."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pd_operator import names
from pd_operator.desired import Choices, desired_state
from pd_operator.drift import drifted
from tests.operator.builders import live, resource

RESOURCES = {"requests": {"cpu": "0.5", "memory": "1024Mi"}}
SET = next(
    manifest
    for manifest in desired_state(resource(prefill={"resources": RESOURCES}), Choices())
    if manifest["kind"] == "StatefulSet"
)


def changed(*path: Any, to: Any) -> dict[str, Any]:
    """The live StatefulSet with one value changed."""
    found = live(copy.deepcopy(SET))
    target: Any = found
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = to
    return found


POD = ("spec", "template", "spec")
WORKER = (*POD, "containers", 0)


@pytest.mark.parametrize(
    "found",
    [
        live(SET),
        changed("spec", "replicas", to=9) | {},
        changed(*WORKER, "resources", "requests", "cpu", to="500m"),
        changed(*WORKER, "resources", "requests", "memory", to="1Gi"),
        changed(*WORKER, "terminationMessagePath", to="/dev/termination-log"),
        changed("metadata", "labels", "extra", to="x"),
        changed("metadata", "annotations", "extra", to="x"),
        changed(
            *POD, "volumes", to=[{"name": "more"}, *SET["spec"]["template"]["spec"]["volumes"]]
        ),
        changed("status", "replicas", to=3),
        changed("spec", "minReadySeconds", to=None),
    ],
    ids=[
        "same",
        "replicas",
        "cpu",
        "memory",
        "default",
        "label",
        "annotation",
        "volume",
        "status",
        "zero",
    ],
)
def test_what_belongs_to_others_is_no_drift(found: dict[str, Any]) -> None:
    wanted = SET | {"spec": {k: v for k, v in SET["spec"].items() if k != "replicas"}}
    assert not drifted(wanted, found)


@pytest.mark.parametrize(
    "found",
    [
        changed(*WORKER, "image", to="other"),
        changed(*WORKER, "args", to=["--other"]),
        changed(*WORKER, "args", to=[]),
        changed(*WORKER, "resources", "requests", "cpu", to="1"),
        changed(*POD, "containers", to=[]),
        changed(*POD, "serviceAccountName", to="other"),
        changed("spec", "updateStrategy", "rollingUpdate", "partition", to=1),
        changed("metadata", "labels", names.DEPLOYMENT, to="other"),
        changed("metadata", "ownerReferences", to=[]),
        changed("metadata", "annotations", names.APPLIED_HASH, to="old"),
    ],
    ids=["image", "args", "no args", "cpu", "no container", "account", "partition", "label",
         "owner", "hash"],
)  # fmt: skip
def test_what_is_ours_drifts(found: dict[str, Any]) -> None:
    assert drifted(SET, found)
