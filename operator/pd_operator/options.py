"""The operator's settings; the command line is generated from them.

The text under a field is its help. Nothing here reads the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Run the operator until SIGTERM."""

    namespace: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A namespace to serve; may be repeated. None: the whole cluster (needs a ClusterRole)."""
    lease: str = "pdserve-system/pdserve"
    """NAMESPACE/NAME of the Lease by which replicas elect the one that acts. The namespace is the
    operator's own."""
    identity: str = ""
    """Name of this replica in the Lease; empty: the host's name and a random part."""
    leader_elect: bool = True
    """Let one of several replicas act; off for a run from a terminal."""
    workers: int = 8
    """Deployments that are worked on at a time."""
    resync_s: float = 300.0
    """Each deployment is looked at anew at least this often."""
    port: int = 8080
    """/healthz, /readyz and /metrics; 0 for a free one."""
    probe_workers: bool = True
    """Read the workers' metrics over HTTP (Builtin scaling, drains, transfer health). Off where
    the operator is outside of the pods' network."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log line that is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    """Print what the operator would apply for a PDDeployment, without a cluster."""

    file: Annotated[Path, tyro.conf.arg(aliases=["-f"])]
    """YAML file; - reads standard input. Objects of other kinds in it are skipped."""
    namespace: Annotated[str, tyro.conf.arg(aliases=["-n"])] = "default"
    """Namespace where the file names none."""
    kinds: tuple[str, ...] = ("PodMonitor", "ScaledObject")
    """Kinds beyond Kubernetes' own that the cluster knows."""
    operator_namespace: str = "pdserve-system"
    """Where the operator runs, for the NetworkPolicy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrdOptions:
    """Print the CustomResourceDefinition."""

    write: tuple[Path, ...] = field(default=())
    """Write it to these files instead."""
