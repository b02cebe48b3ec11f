"""The Services: one headless for each role, one for clients."""

from __future__ import annotations

from pd_operator import names
from pd_operator.engines import engine_of
from pd_operator.objects.meta import child
from pd_operator.ports import ports_of
from pd_operator.resource import Manifest, Resource


def services(resource: Resource) -> list[Manifest]:
    """The bootstrap Service, decode's, and the front door."""
    headless = [_headless(resource, role) for role in names.ROLES]
    return [*headless, _front(resource)] if resource.spec.router.enabled else headless


def _headless(resource: Resource, role: names.Role) -> Manifest:
    """Names of a role's pods, and the list that routers follow. Each prefill pod is its own
    bootstrap server, so that the Service must never choose one: it has no address."""
    ports, selector = ports_of(resource, role), names.selector(resource.name, role)
    if engine_of(resource).self_routing:
        selector |= {names.ROUTABLE: "true"}
    listed = [_port("http", ports.http, "http")]
    if role == "prefill":
        listed.append(_port("bootstrap", ports.bootstrap, "bootstrap"))
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector,
        "ports": listed,
    }
    name = names.workload(resource.name, role)
    return child(resource, "v1", "Service", name, role, spec=spec)


def _front(resource: Resource) -> Manifest:
    router = resource.spec.router
    spec = {
        "type": router.service_type,
        "selector": names.selector(resource.name, "router"),
        "ports": [_port("http", router.port, "http")],
    }
    return child(resource, "v1", "Service", resource.name, "router", spec=spec)


def _port(name: str, port: int, target: str) -> Manifest:
    return {"name": name, "port": port, "targetPort": target, "protocol": "TCP"}


def url(resource: Resource) -> str | None:
    """Where clients find the model; None without a router."""
    router = resource.spec.router
    if not router.enabled:
        return None
    return f"http://{resource.name}.{resource.namespace}.svc:{router.port}"
