"""What tests use of a cluster, whichever it is: its kubeconfig, kubectl and helm."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class CommandError(AssertionError):
    """kubectl or helm said no; the message is what it wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One cluster through its command-line tools."""

    kubeconfig: Path
    programs: Path
    """The folder with kubectl."""
    helm_program: Path
    prefix: Sequence[str] = ()
    """Put before each command, to enter the cluster's network."""

    def kubectl(self, *arguments: str, stdin: str = "", timeout_s: float = 120.0) -> str:
        """Run kubectl and return what it printed; CommandError where it fails."""
        return self._run(self.programs / "kubectl", arguments, stdin, timeout_s)

    def helm(self, *arguments: str, timeout_s: float = 300.0) -> str:
        """Run helm and return what it printed; CommandError where it fails."""
        return self._run(self.helm_program, arguments, "", timeout_s)

    def get(self, *arguments: str) -> Any:
        """The object, or list of objects, that `kubectl get` finds."""
        found = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found["items"] if found["kind"] == "List" else found

    def apply(self, *objects: dict[str, Any], namespace: str = "default") -> str:
        """Apply manifests, server side."""
        manifests = "\n---\n".join(json.dumps(one) for one in objects)
        return self.kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=manifests)

    def _run(self, program: Path, arguments: Sequence[str], stdin: str, timeout_s: float) -> str:
        done = subprocess.run(
            [*self.prefix, program, "--kubeconfig", self.kubeconfig, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode:
            raise CommandError(f"{program.name} {' '.join(arguments)}\n{done.stderr.strip()}")
        return done.stdout


def until(what: str, done: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    """Poll until `done` is true; an assertion that names `what` where it does not become so."""
    end = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.1)
