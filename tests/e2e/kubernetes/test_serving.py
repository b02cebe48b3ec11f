"""helm install, kubectl apply, and a pair serves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.target import Target
from tests.e2e.kubernetes.conftest import Space

pytestmark = [pytest.mark.node, pytest.mark.model, pytest.mark.timeout(600)]

KINDS = (
    "pod,statefulset,deployment,replicaset,controllerrevision,service,endpointslice,secret,"
    "serviceaccount,role,rolebinding,poddisruptionbudget"
)
"""What there is of a deployment that serves."""
QUESTION = {
    "messages": [{"role": "user", "content": "Name three colours and a large city."}],
    "max_tokens": 24,
    "temperature": 0,
    "logprobs": True,
}


@pytest.fixture(scope="module")
def unified(operator: Target, space: Space) -> str:
    """A single unified worker with the same model and flags; its URL."""
    volume = {"name": "model", "hostPath": {"path": operator.model.removeprefix("hostpath://")}}
    flags = ("--role=unified", "--model=/models/smollm2-135m", "--host=0.0.0.0", "--port=8000")
    container = {
        "name": "worker",
        "image": operator.worker_image,
        "args": ["worker", *flags, "--dtype=float32", "--max-total-tokens=8192"],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8000}, "periodSeconds": 1},
        "volumeMounts": [{"name": "model", "mountPath": "/models/smollm2-135m"}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "unified"},
        "spec": {"containers": [container], "volumes": [volume]},
    }
    operator.client.apply(pod, namespace=space.name)
    space.kubectl("wait", "--for=condition=Ready", "pod/unified", "--timeout=3m")
    return f"http://{space.kubectl('get', 'pod', 'unified', '-o=jsonpath={.status.podIP}')}:8000"


def choice(answer: dict[str, Any]) -> Any:
    [only] = answer["choices"]
    return only


def test_a_chat_through_the_service_equals_the_unified_role(
    space: Space, served: str, unified: str
) -> None:
    path, body = "/v1/chat/completions", QUESTION | {"model": "smollm2-135m"}
    pair, alone = (space.ask(url + path, **body) for url in (served, unified))
    assert choice(pair)["message"]["content"] == choice(alone)["message"]["content"] != ""
    assert choice(pair)["finish_reason"] == choice(alone)["finish_reason"]
    assert pair["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"]


def test_the_answer_took_the_disaggregated_path(space: Space, served: str) -> None:
    space.ask(f"{served}/v1/completions", model="smollm2-135m", prompt="One two", max_tokens=4)
    for role in ("prefill", "decode"):
        info = json.loads(
            space.kubectl("exec", f"smollm2-{role}-0", "--", "python", "-c", SERVER_INFO)
        )
        assert info["role"] == role


SERVER_INFO = """
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:30000/server_info").read().decode())
"""


def test_status_is_shown(space: Space, served: str) -> None:
    [line] = space.kubectl("get", "pdd", "smollm2", "--no-headers").splitlines()
    assert "1P1D/1P1D" in line
    assert served in line


def test_pods_are_not_root(space: Space, served: str) -> None:
    for pod in ("smollm2-prefill-0", "smollm2-decode-0"):
        assert space.kubectl("exec", pod, "--", "id", "-u").strip() == "65532"


def test_deletion_leaves_nothing(space: Space, served: str) -> None:
    mine = "-l", "pdserve.io/deployment=smollm2"
    found = space.kubectl("get", KINDS, *mine, "-o", "name").split()
    assert {name.partition("/")[0].partition(".")[0] for name in found} == set(KINDS.split(","))
    space.kubectl("delete", "pdd", "smollm2")
    space.kubectl("wait", "--for=delete", KINDS, *mine, "--timeout=2m")
    assert space.kubectl("get", KINDS, *mine, "-o", "name") == ""
