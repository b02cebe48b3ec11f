"""The seam between the pods and what runs in them; one file an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from pd_operator import names
from pd_operator.resource import Manifest, Resource

CACHE = "/cache"
"""Where what a worker downloads is mounted."""
ACCESS_PORT = 8000
"""Where a router listens in its pod; spec.router.port is the Service's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """HTTP paths: loaded, alive, and able to take a request now."""

    startup: str
    liveness: str
    readiness: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What a container runs, and how it is watched."""

    command: list[str]
    args: list[str]
    env: list[Manifest]
    probes: Probes


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """What a router may read in its namespace to find the workers."""

    group: str
    resource: str


class Engine(ABC):
    """How the worker and router of one kind are started and watched."""

    router_reads: Permission
    hardened: bool
    """Its images run as a numeric non-root user on a read-only root file system."""
    self_routing: bool
    """Its router follows the roles' Services and leaves out workers that are not ready. Else it
    follows the pods, and the operator labels those that are ready."""

    @abstractmethod
    def worker(self, resource: Resource, role: names.Role) -> Process:
        """The worker's process, without the user's own flags and environment."""

    @abstractmethod
    def router(self, resource: Resource) -> Process:
        """The router's process, without the user's own flags and environment."""


def model_path(resource: Resource) -> str:
    """The model as a worker names it: a hub id, or where its files are mounted."""
    kind, _, rest = resource.spec.model.source.partition("://")
    if kind == "hf":
        return rest
    tail = rest.rstrip("/").rsplit("/", 1)[-1]
    return f"/models/{resource.served_name if kind == 'oci' else tail}"


def variable(name: str, value: str) -> Manifest:
    """A plain environment variable."""
    return {"name": name, "value": value}


def from_field(name: str, path: str) -> Manifest:
    """An environment variable that holds a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def from_secret(name: str, secret: str, key: str) -> Manifest:
    """An environment variable that holds a key of a Secret."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
