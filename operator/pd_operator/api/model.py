"""What is served, and the engine that serves it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from pd_operator.api.markers import (
    Env,
    ImageName,
    LocalRef,
    Name,
    Part,
    Path,
    Port,
    Quantity,
    Rule,
    Text,
    at_most,
)

Source = Annotated[str, Meta(max_length=1024, pattern=r"^(hf|pvc|hostpath|oci)://.+")]
Args = Annotated[tuple[Text, ...], at_most(64)]


class SecretKey(Part, frozen=True, kw_only=True):
    """One key of a Secret in the same namespace."""

    name: Name
    """The Secret."""
    key: Name = "HF_TOKEN"
    """The key in it."""


class Cache(Part, frozen=True, kw_only=True):
    """Where a downloaded model is kept on the node."""

    rules: ClassVar = (
        Rule("self.type != 'HostPath' || has(self.path)", "cache.type HostPath needs cache.path"),
        Rule("self.type != 'PVC' || has(self.claimName)", "cache.type PVC needs cache.claimName"),
    )

    type: Literal["EmptyDir", "HostPath", "PVC"] = "EmptyDir"
    """EmptyDir: gone with the pod. HostPath: kept on each node. PVC: shared, needs ReadWriteMany
    for more than one node."""
    path: Path | None = None
    """HostPath: the folder, which is made where it is missing."""
    claim_name: Name | None = None
    """PVC: the claim."""
    size_limit: Quantity | None = None
    """EmptyDir: the most that it may hold."""


class Model(Part, frozen=True, kw_only=True):
    """What is served."""

    source: Source
    """hf://ORG/NAME (the hub), pvc://CLAIM/PATH, hostpath:///PATH (a folder or file on every
    node), or oci://IMAGE (mounted as an image volume)."""
    served_name: Name | None = None
    """The model's name in the API; the last part of the source where absent."""
    revision: Name | None = None
    """Branch, tag or commit of a hub model."""
    token_secret_ref: SecretKey | None = None
    """The hub's access token."""
    cache: Cache = Cache()
    """Where downloads are kept."""


class Engine(Part, frozen=True, kw_only=True):
    """What both roles run."""

    rules: ClassVar = (
        Rule("self.type == oldSelf.type", "engine.type cannot change: make a second deployment"),
    )

    type: Literal["Pdserve", "SGLang"] = "Pdserve"
    """Pdserve: this project's worker. SGLang: an image with SGLang and its router."""
    image: ImageName
    """Image of both roles."""
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When the image is pulled."""
    image_pull_secrets: Annotated[tuple[LocalRef, ...], at_most(16, keys=("name",))] = ()
    """Secrets with which images are pulled."""
    port: Port = 30000
    """HTTP port of a worker."""
    args: Args = ()
    """Flags of both roles. What must be equal on both sides (page size, dtype) belongs here."""
    env: Env = ()
    """Environment of both roles."""
