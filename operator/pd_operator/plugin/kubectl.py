"""kubectl as a function; the only place of the plugin that runs anything."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pd_operator import names
from pd_operator.errors import CommandFailed
from pd_operator.resource import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """Where its commands go."""

    flags: Sequence[str] = ()
    """Put before each command: --context, --kubeconfig, --namespace."""
    program: str = "kubectl"

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        """What it prints. Raises CommandFailed with what it says instead."""
        command = [self.program, *self.flags, *arguments]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        except OSError as error:
            raise CommandFailed(f"{self.program} cannot be run: {error.strerror}") from error
        if done.returncode:
            raise CommandFailed(done.stderr.strip() or f"{self.program} ended with an error")
        return done.stdout

    def get(self, *arguments: str) -> Manifest:
        """One object, or a list of them. Raises CommandFailed."""
        found: Manifest = json.loads(self.run("get", *arguments, "-o", "json"))
        return found

    def list(self, *arguments: str) -> list[Manifest]:
        """Objects of one or several kinds. Raises CommandFailed."""
        items: list[Manifest] = self.get(*arguments)["items"]
        return items

    def find(self, *arguments: str) -> Manifest | None:
        """One object; None where there is none, or where it may not be read."""
        try:
            return self.get(*arguments)
        except CommandFailed:
            return None

    def leases(self) -> Sequence[Manifest] | None:
        """Of operators in all namespaces; None where they may not be read."""
        try:
            return self.list("leases", "--all-namespaces", "-l", names.OPERATOR_SELECTOR)
        except CommandFailed:
            return None

    def deployment(self, name: str) -> Manifest:
        """One PDDeployment. Raises CommandFailed."""
        return self.get(f"{names.PLURAL}.{names.GROUP}", name)

    def patch(self, name: str, spec: Any) -> None:
        """Merge `spec` into a PDDeployment's. Raises CommandFailed."""
        patch = json.dumps({"spec": spec})
        self.run("patch", f"{names.PLURAL}.{names.GROUP}", name, "--type=merge", "-p", patch)

    def replace(self, manifest: Manifest) -> None:
        """Write an object as it is; refused where someone wrote meanwhile. Raises CommandFailed."""
        self.run("replace", "-f", "-", stdin=json.dumps(manifest))
