"""The plugin's commands; its command line is generated from them, and what is said here is help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

Name = Annotated[str, tyro.conf.Positional]
File = Annotated[Path, tyro.conf.arg(aliases=["-f"])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Which cluster, as for kubectl."""

    namespace: Annotated[str, tyro.conf.arg(aliases=["-n"])] = ""
    """Namespace; empty: the context's."""
    context: str = ""
    """Context of the kubeconfig."""
    kubeconfig: str = ""
    """Path of the kubeconfig."""

    @property
    def flags(self) -> tuple[str, ...]:
        """For kubectl."""
        given = {
            "--namespace": self.namespace,
            "--context": self.context,
            "--kubeconfig": self.kubeconfig,
        }
        return tuple(f"{flag}={value}" for flag, value in given.items() if value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Access):
    """Show what a PDDeployment would take: pods, devices, objects, warnings. Needs no cluster."""

    file: File
    """YAML file; - reads standard input."""
    nodes: bool = False
    """Look at the cluster's nodes as well, and say what fits on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(Access):
    """Show a deployment as a tree of its workers, and why something is not as it should be."""

    name: Name = ""
    """Of the PDDeployment; empty: all of the namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor(Access):
    """Look for what keeps deployments from working; name what to do; fail where there is some."""

    name: Name = ""
    """Of the PDDeployment; empty: the cluster and the operator only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff(Access):
    """Show what applying a file would change, and what that means for running workers."""

    file: File
    """YAML file; - reads standard input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale(Access):
    """Set the numbers of workers."""

    name: Name
    """Of the PDDeployment."""
    prefill: int | None = None
    """Prefill workers."""
    decode: int | None = None
    """Decode workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout(Access):
    """Look at a rollout, hold it, go on, or go back."""

    action: Annotated[Literal["status", "pause", "resume", "history", "undo"], tyro.conf.Positional]
    """What to do. undo: back to the revision before."""
    name: Name
    """Of the PDDeployment."""
    to_revision: int = 0
    """undo: back to this one of `history`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs(Access):
    """Show what router, prefill and decode logged about one request, in order."""

    name: Name
    """Of the PDDeployment."""
    request: str
    """Its id, as in the answer's X-Request-ID header."""
    since: str = "1h"
    """How far to look back, such as 10m."""
