"""Each command: read what it needs, decide in a pure module, print or write."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import yaml

from pd_operator import names, revisions
from pd_operator.desired import Choices, desired_state
from pd_operator.errors import CommandFailed, InvalidSpec
from pd_operator.plugin import changes, fit, forecast, trace, tree
from pd_operator.plugin import doctor as clinic
from pd_operator.plugin.facts import gather, routed
from pd_operator.plugin.kubectl import Kubectl
from pd_operator.plugin.options import Access, Diff, Doctor, Logs, Plan, Rollout, Scale, Status
from pd_operator.plugin.sizes import sizes
from pd_operator.plugin.table import table
from pd_operator.rendering import refuse_unknown
from pd_operator.resource import Manifest, Resource

EVERYTHING = Choices(optional_kinds=frozenset(("PodMonitor", "ScaledObject")))


def read(file: Path, namespace: str) -> Manifest:
    """The first PDDeployment of a file. Raises InvalidSpec."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
        bodies = [each for each in yaml.safe_load_all(text) if isinstance(each, dict)]
    except (OSError, yaml.YAMLError) as error:
        raise InvalidSpec(f"{file}: {error}") from error
    found: Manifest | None = next((b for b in bodies if b.get("kind") == names.KIND), None)
    if found is None:
        raise InvalidSpec(f"{file}: there is no {names.KIND} in it")
    refuse_unknown(found)
    meta = {"namespace": namespace or "default"} | found["metadata"]
    return found | {"metadata": meta}


def plan(options: Plan) -> int:
    """`plan`."""
    resource = Resource.parse(read(options.file, options.namespace))
    manifests = desired_state(resource, EVERYTHING)
    parts = forecast.parts(resource, manifests)
    _show(forecast.summary(parts), "", forecast.objects(manifests))
    found = list(forecast.warnings(resource))
    if found:
        _show("", *(f"! {each}" for each in found))
    if options.nodes:
        _show("", *fit.report(parts, _nodes(_kubectl(options))))
    return 0


def status(options: Status) -> int:
    """`status`."""
    kubectl = _kubectl(options)
    if not options.name:
        _show(tree.overview(kubectl.list(f"{names.PLURAL}.{names.GROUP}")))
        return 0
    _show(*tree.tree(gather(kubectl, kubectl.deployment(options.name))))
    return 0


def doctor(options: Doctor) -> int:
    """`doctor`: 1 where something is broken."""
    kubectl, now = _kubectl(options), time.time()
    findings = [
        clinic.crd(kubectl.find("customresourcedefinitions", names.CRD_NAME)),
        clinic.operator(kubectl.leases(), now),
    ]
    if options.name:
        facts = gather(kubectl, kubectl.deployment(options.name))
        parts = forecast.parts(facts.resource, desired_state(facts.resource, EVERYTHING))
        findings += clinic.nodes(parts, _nodes(kubectl))
        findings += clinic.deployment(facts)
        if facts.resource.spec.router.enabled:
            findings += clinic.router(routed(kubectl, facts.resource))
    _show(*map(str, findings))
    return int(any(each.level == "broken" for each in findings))


def diff(options: Diff) -> int:
    """`diff`: 1 where something would change, as kubectl's."""
    kubectl = _kubectl(options)
    body = read(options.file, options.namespace)
    live = kubectl.find(f"{names.PLURAL}.{names.GROUP}", body["metadata"]["name"])
    old = Resource.parse(live) if live else None
    if live:
        body = live | {"spec": body["spec"]}
    new = Resource.parse(body)
    found = list(changes.lines(old, new, EVERYTHING))
    _show(*found, *(f"# {each}" for each in changes.consequences(old, new)))
    return int(bool(found))


def scale(options: Scale) -> int:
    """`scale`."""
    kubectl = _kubectl(options)
    resource = Resource.parse(kubectl.deployment(options.name))
    patch = sizes(resource, {"prefill": options.prefill, "decode": options.decode})
    kubectl.patch(options.name, patch)
    _show(*(f"{role}: {part['replicas']} workers" for role, part in patch.items()))
    return 0


def rollout(options: Rollout) -> int:
    """`rollout`."""
    kubectl = _kubectl(options)
    if options.action in ("pause", "resume"):
        kubectl.patch(options.name, {"rollout": {"paused": options.action == "pause"}})
        _show(f"{options.name}: {options.action}d")
    elif options.action == "history":
        _show(_history(_revisions(kubectl, options.name)))
    elif options.action == "undo":
        _undo(kubectl, options.name, options.to_revision)
    else:
        conditions = gather(kubectl, kubectl.deployment(options.name)).conditions
        told = conditions.get("RolloutComplete", {"reason": "Unknown", "message": "no status yet"})
        _show(f"{told['reason']}: {told['message']}")
    return 0


def _undo(kubectl: Kubectl, name: str, number: int) -> None:
    body = kubectl.deployment(name)
    then = revisions.earlier(_revisions(kubectl, name), number)
    spec = revisions.restored(body["spec"], then["data"]["spec"])
    kubectl.replace({key: body[key] for key in body if key != "status"} | {"spec": spec})
    _show(f"{name}: back to revision {then['revision']}")


def _revisions(kubectl: Kubectl, name: str) -> list[Manifest]:
    return revisions.in_order(kubectl.list("controllerrevisions", "-l", revisions.selector(name)))


def _history(found: list[Manifest]) -> str:
    rows = [["REVISION", "SINCE", "MODEL", "IMAGE"]]
    for each in found:
        spec = each["data"]["spec"]
        made = each["metadata"].get("creationTimestamp", "-")
        rows.append([str(each["revision"]), made, spec["model"]["source"], spec["engine"]["image"]])
    return table(rows)


def logs(options: Logs) -> int:
    """`logs`: 1 where nothing was found."""
    kubectl = _kubectl(options)
    labels = f"{names.DEPLOYMENT}={options.name}"
    pods = [each["metadata"]["name"] for each in kubectl.list("pods", "-l", labels)]
    texts = {pod: _log(kubectl, pod, options.since) for pod in pods}
    found = trace.trace(texts, options.request)
    _show(*(f"{line.time} {line.pod}: {line.text}" for line in found))
    return int(not found)


def _log(kubectl: Kubectl, pod: str, since: str) -> str:
    """A pod's log; a pod that has none yet gives an empty one."""
    try:
        return kubectl.run("logs", pod, "--timestamps", f"--since={since}", "--all-containers")
    except CommandFailed as error:
        print(f"{pod}: {error}", file=sys.stderr)
        return ""


def _kubectl(options: Access) -> Kubectl:
    return Kubectl(flags=options.flags)


def _nodes(kubectl: Kubectl) -> list[fit.Node]:
    return fit.nodes_of(kubectl.list("nodes"), kubectl.list("pods", "--all-namespaces"))


def _show(*lines: str) -> None:
    print("\n".join(lines))
