"""A PDDeployment as the operator works with it: its identity and its decoded spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from pd_operator import names
from pd_operator.api.role import Role
from pd_operator.api.spec import Spec
from pd_operator.errors import InvalidSpec

Manifest = dict[str, Any]


class Key(NamedTuple):
    """Which deployment: the unit of work."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One PDDeployment, read once."""

    key: Key
    uid: str
    generation: int
    spec: Spec
    status: Mapping[str, Any]
    """Its status as stored; empty at first."""

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Resource:
        """From the manifest; what is absent takes its default. Raises InvalidSpec."""
        meta = body.get("metadata") or {}
        try:
            spec = msgspec.convert(body.get("spec") or {}, Spec)
        except msgspec.ValidationError as error:
            raise InvalidSpec(str(error).replace("`$", "`spec")) from None
        return cls(
            key=Key(meta.get("namespace") or "default", meta["name"]),
            uid=meta.get("uid", ""),
            generation=meta.get("generation", 1),
            spec=spec,
            status=body.get("status") or {},
        )

    @property
    def conditions(self) -> dict[str, Manifest]:
        """Of the stored status, by type."""
        return {each["type"]: each for each in self.status.get("conditions", [])}

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def namespace(self) -> str:
        return self.key.namespace

    @property
    def secret(self) -> str:
        """Name of the Secret that its parts share. Running parts hold its value, so that after a
        loss another one takes its place under another name, and a rollout leads to it."""
        return str(self.status.get("secret") or names.secret(self.name))

    def role(self, role: names.Role) -> Role:
        """Its prefill or decode part."""
        return self.spec.prefill if role == "prefill" else self.spec.decode

    @property
    def owner(self) -> Manifest:
        """The ownerReference of every child."""
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    @property
    def served_name(self) -> str:
        """The model's name in the API."""
        model = self.spec.model
        tail = model.source.rstrip("/").rsplit("/", 1)[-1].partition("@")[0]
        if model.source.startswith("oci://"):
            tail = tail.partition(":")[0]
        return model.served_name or tail.removesuffix(".gguf")
