"""PDDeployment.status: what the operator saw and did last; everything here is for reading."""

from __future__ import annotations

from typing import Annotated, Literal

from pd_operator.api.markers import Count, Part, Text, at_most

Phase = Literal[
    "Pending", "Provisioning", "Ready", "Degraded", "Updating", "Stalled", "Suspended"
]  # fmt: skip
Truth = Literal["True", "False", "Unknown"]


class Condition(Part, frozen=True, kw_only=True):
    """One condition, as everywhere in Kubernetes."""

    type: Text
    """What it is about."""
    status: Truth
    """Whether it holds."""
    observed_generation: int
    """The spec's generation that it was judged for."""
    last_transition_time: Text
    """When `status` changed last."""
    reason: Text
    """A word for programs; stable."""
    message: Annotated[str, at_most(32768)]
    """A sentence for people: what is the matter, and what to do."""


class RoleStatus(Part, frozen=True, kw_only=True):
    """Workers of one role, in workers, not pods."""

    desired: Count
    """Wanted."""
    replicas: Count
    """Existing."""
    ready: Count
    """Ready."""
    updated: Count
    """Of the wanted revision."""
    draining: Count
    """Finishing their requests before they go."""
    reason: Text | None = None
    """Why some are not ready."""
    workload: Text
    """The StatefulSet or Deployment."""
    selector: Text
    """Label selector of its pods."""


class Status(Part, frozen=True, kw_only=True):
    """What the operator saw and did last."""

    observed_generation: int
    """The spec's generation that everything here is about."""
    phase: Phase
    """A summary for people; programs read the conditions."""
    size: Text
    """Ready/wanted workers: 2P4D/2P6D."""
    url: Text | None = None
    """Where the model is served inside the cluster."""
    current_revision: Text | None = None
    """Revision that was rolled out completely last."""
    update_revision: Text | None = None
    """Revision that is wanted."""
    prefill: RoleStatus | None = None
    """The prefill workers."""
    decode: RoleStatus | None = None
    """The decode workers."""
    router: RoleStatus | None = None
    """The router pods."""
    secret: Text | None = None
    """The Secret that its parts share, where the first one was lost and another one was made."""
    bootstrap_endpoints: Annotated[tuple[Text, ...], at_most(64)] = ()
    """Bootstrap servers of the first prefill workers, by their stable names."""
    conditions: Annotated[tuple[Condition, ...], at_most(32, keys=("type",))] = ()
    """Ready, Reconciling, Stalled, PrefillAvailable, DecodeAvailable, RouterAvailable,
    BootstrapReachable, RDMAReady, KVTransferHealthy, ScalingActive, MonitoringActive,
    RolloutComplete."""
