"""The operator installed by helm, and a pair that serves the small model."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.client import Client
from tests.cluster.target import Target

REPOSITORY = Path(__file__).parents[3]
SYSTEM = "pdserve-system"
ASK = """
import json, sys, urllib.request
url, body = sys.argv[1], sys.argv[2].encode()
request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=120).read().decode())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A namespace of one test module, with a pod in it from which services are called."""

    client: Client
    name: str

    def kubectl(self, *arguments: str, timeout_s: float = 300.0) -> str:
        """kubectl in this namespace."""
        return self.client.kubectl("-n", self.name, *arguments, timeout_s=timeout_s)

    def ask(self, url: str, **body: Any) -> dict[str, Any]:
        """POST from inside the cluster, by the cluster's own DNS and Service addresses."""
        command = ("python", "-c", ASK, url, json.dumps(body))
        answer: dict[str, Any] = json.loads(self.kubectl("exec", "caller", "--", *command))
        return answer


@pytest.fixture(scope="session")
def operator(target: Target) -> Iterator[Target]:
    """The chart, installed."""
    repository, _, tag = target.operator_image.rpartition(":")
    target.client.helm(
        "upgrade",
        *("--install", "pds", str(REPOSITORY / "charts" / "pdserve")),
        *("--namespace", SYSTEM, "--create-namespace", "--wait", "--timeout=3m"),
        f"--set=image.repository={repository},image.tag={tag}",
    )
    yield target
    target.client.helm("uninstall", "pds", "--namespace", SYSTEM)
    target.client.kubectl("delete", "namespace", SYSTEM)


@pytest.fixture(scope="module")
def space(operator: Target) -> Iterator[Space]:
    """A namespace of the module's own; everything in it goes afterwards."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    operator.client.kubectl("create", "namespace", name)
    found = Space(client=operator.client, name=name)
    command = ("--command", "--", "sleep", "infinity")
    found.kubectl("run", "caller", f"--image={operator.worker_image}", *command)
    found.kubectl("wait", "--for=condition=Ready", "pod/caller", "--timeout=2m")
    yield found
    operator.client.kubectl("delete", "namespace", name, "--timeout=5m", timeout_s=330)


@pytest.fixture(scope="module")
def served(operator: Target, space: Space) -> str:
    """The example, applied and ready; its URL."""
    example = yaml.safe_load((REPOSITORY / "examples/pddeployment-smollm2.yaml").read_text())
    example["spec"]["model"]["source"] = operator.model
    example["spec"]["engine"]["image"] = operator.worker_image
    operator.client.apply(example, namespace=space.name)
    space.kubectl("wait", "--for=condition=Ready", "pdd/smollm2", "--timeout=5m", timeout_s=330)
    return space.kubectl("get", "pdd", "smollm2", "-o=jsonpath={.status.url}")
