"""The operator installed by helm, and a pair that serves the small model."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.client import Client, until
from tests.cluster.target import Target

REPOSITORY = Path(__file__).parents[3]
CLIENTS = (Path(__file__).parent / "load_client.py").read_text()
SYSTEM = "pdserve-system"
AT_ONCE = '--overrides={"spec": {"terminationGracePeriodSeconds": 0}}'
"""A pod ends without notice; nothing in it listens to signals."""
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
    worker_image: str

    def kubectl(self, *arguments: str, timeout_s: float = 300.0) -> str:
        """kubectl in this namespace."""
        return self.client.kubectl("-n", self.name, *arguments, timeout_s=timeout_s)

    def ask(self, url: str, **body: Any) -> dict[str, Any]:
        """POST from inside the cluster, by the cluster's own DNS and Service addresses."""
        command = ("python", "-c", ASK, url, json.dumps(body))
        answer: dict[str, Any] = json.loads(self.kubectl("exec", "caller", "--", *command))
        return answer

    def size(self, wanted: str, name: str = "smollm2", minutes: int = 3) -> None:
        """Wait until the deployment is complete at this size, such as 1P2D."""
        size = f"--for=jsonpath={{.status.size}}={wanted}/{wanted}"
        limit = (f"--timeout={minutes}m",)
        self.kubectl("wait", size, f"pdd/{name}", *limit, timeout_s=minutes * 60 + 10)
        self.kubectl("wait", "--for=condition=Ready", f"pdd/{name}", *limit)

    def edit(self, spec: dict[str, Any], name: str = "smollm2") -> None:
        """Change a deployment."""
        patch = json.dumps({"spec": spec})
        self.kubectl("patch", "pdd", name, "--type=merge", "-p", patch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Clients that ask all the time, in a pod of theirs (load_client.py)."""

    space: Space
    pod: str

    def answers(self) -> list[dict[str, Any]]:
        """What became of each request so far."""
        return [json.loads(line) for line in self.space.kubectl("logs", self.pod).splitlines()]

    @property
    def errors(self) -> list[str]:
        """Of all requests so far."""
        return [answer["error"] for answer in self.answers() if answer["error"]]

    def more(self, count: int) -> None:
        """Wait until so many more requests have ended."""
        before = len(self.answers())
        until(f"{count} answers", lambda: len(self.answers()) >= before + count, timeout_s=180)


@contextmanager
def load(
    space: Space, url: str, *, clients: int = 3, words: int = 8, tokens: int = 12, kinds: int = 7
) -> Iterator[Load]:
    """Clients with questions of so many words (times two), which are so many different ones, and
    answers of so many tokens. All their requests must have been answered, and equal questions
    equally."""
    pod = f"load-{uuid.uuid4().hex[:6]}"
    numbers = [str(number) for number in (clients, words, tokens, kinds)]
    command = ("python", "-c", CLIENTS, url, "smollm2-135m", *numbers)
    image = f"--image={space.worker_image}"
    space.kubectl("run", pod, image, "--restart=Never", "--command", "--", *command)
    space.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=1m")
    running = Load(space=space, pod=pod)
    running.more(clients)
    yield running
    running.more(2 * clients)
    space.kubectl("exec", pod, "--", "touch", "/tmp/stop")
    ended = "--for=jsonpath={.status.phase}=Succeeded"
    space.kubectl("wait", ended, f"pod/{pod}", "--timeout=3m")
    answers = running.answers()
    slowest = max(answer["seconds"] for answer in answers)
    print(f"{len(answers)} requests, slowest {slowest:.1f} s, {len(running.errors)} failed")
    assert running.errors == []


@pytest.fixture(scope="module")
def operator(target: Target) -> Iterator[Target]:
    """The chart, installed for a module."""
    repository, _, tag = target.operator_image.rpartition(":")
    target.client.helm(
        "upgrade",
        *("--install", "pdserve", str(REPOSITORY / "charts" / "pdserve")),
        *("--namespace", SYSTEM, "--create-namespace", "--wait", "--timeout=3m"),
        f"--set=image.repository={repository},image.tag={tag}",
    )
    yield target
    target.client.helm("uninstall", "pdserve", "--namespace", SYSTEM)
    target.client.kubectl("delete", "namespace", SYSTEM)


@pytest.fixture(scope="module")
def space(operator: Target) -> Iterator[Space]:
    """A namespace of the module's own; everything in it goes afterwards."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    operator.client.kubectl("create", "namespace", name)
    found = Space(client=operator.client, name=name, worker_image=operator.worker_image)
    command = ("--command", "--", "sleep", "infinity")
    found.kubectl("run", "caller", f"--image={operator.worker_image}", AT_ONCE, *command)
    found.kubectl("wait", "--for=condition=Ready", "pod/caller", "--timeout=2m")
    yield found
    # Pods first: a namespace with pods in it is looked at again only after half their grace.
    found.kubectl("delete", "pdd,pod", "--all", "--timeout=3m")
    found.kubectl("wait", "--for=delete", "pod", "--all", "--timeout=3m")
    operator.client.kubectl("delete", "namespace", name, "--wait=false")


def example(target: Target) -> dict[str, Any]:
    """examples/pddeployment-smollm2.yaml with what this cluster has."""
    file = REPOSITORY / "examples/pddeployment-smollm2.yaml"
    made: dict[str, Any] = yaml.safe_load(file.read_text())
    made["spec"]["model"]["source"] = target.model
    made["spec"]["engine"]["image"] = target.worker_image
    return made


@pytest.fixture(scope="module")
def served(operator: Target, space: Space) -> str:
    """The example, applied and ready; its URL."""
    operator.client.apply(example(operator), namespace=space.name)
    space.kubectl("wait", "--for=condition=Ready", "pdd/smollm2", "--timeout=5m", timeout_s=330)
    return space.kubectl("get", "pdd", "smollm2", "-o=jsonpath={.status.url}")
