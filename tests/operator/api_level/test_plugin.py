"""`kubectl pdd` with the real kubectl, API server and operator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pd_operator.kinds import PDDEPLOYMENT
from pd_operator.plugin.cli import main
from pd_operator.service import Service
from tests.cluster.client import Client
from tests.operator.api_level.kubelet import Kubelet
from tests.operator.api_level.space import Space, until

pytestmark = pytest.mark.cluster

Run = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
def pdd(
    api: Client,
    space: Space,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """The plugin's command line; its exit status and what it printed."""
    monkeypatch.setenv("PATH", str(api.programs), prepend=":")
    where = ["--kubeconfig", str(api.kubeconfig), "-n", space.namespace]

    async def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = await asyncio.to_thread(main, [*arguments, *where])
        told = capsys.readouterr()
        return code, told.out + told.err

    return run


@pytest.fixture
async def ready(space: Space, operator: Service, kubelet: Kubelet) -> Space:
    """A deployment that serves."""
    await space.create()
    await space.condition("Ready", "True")
    return space


async def file_of(space: Space, folder: Path, **spec: Any) -> str:
    body = await space.get(PDDEPLOYMENT, "m")
    path = folder / "m.yaml"
    path.write_text(yaml.safe_dump(body | {"spec": body["spec"] | spec}))
    return str(path)


async def test_status_is_a_tree(ready: Space, pdd: Run) -> None:
    code, text = await pdd("status", "m")
    assert code == 0
    assert "prefill  1/1 ready  StatefulSet m-prefill" in text
    assert "m-decode-1  ready" in text
    assert (await pdd("status"))[1].count("\n") == 2


async def test_diff_tells_what_a_change_means(ready: Space, pdd: Run, tmp_path: Path) -> None:
    assert (await pdd("diff", "-f", await file_of(ready, tmp_path)))[0] == 0
    changed = await file_of(ready, tmp_path, engine={"type": "Pdserve", "image": "worker:2"})
    code, text = await pdd("diff", "-f", changed)
    assert code == 1
    assert "+          image: worker:2" in text
    assert "rolled out in step" in text


async def test_scale_changes_one_role(ready: Space, pdd: Run) -> None:
    assert (await pdd("scale", "m", "--decode", "3"))[0] == 0

    async def scaled() -> bool:
        return (await ready.replicas("prefill"), await ready.replicas("decode")) == (1, 3)

    await until("three decode workers", scaled)
    code, text = await pdd("scale", "m", "--decode", "0")
    assert code == 1
    assert "no use without each other" in text


async def test_pause_resume_and_undo(ready: Space, pdd: Run) -> None:
    assert (await pdd("rollout", "pause", "m"))[0] == 0
    await ready.edit(engine={"image": "worker:2"})
    await ready.condition("RolloutComplete", "False Paused")
    assert (await pdd("rollout", "resume", "m"))[0] == 0
    await ready.condition("RolloutComplete", "True")
    assert "RolledOut" in (await pdd("rollout", "status", "m"))[1]
    code, text = await pdd("rollout", "history", "m")
    assert (code, text.count("worker:1"), text.count("worker:2")) == (0, 1, 1)

    assert (await pdd("rollout", "undo", "m"))[0] == 0
    assert (await ready.get(PDDEPLOYMENT, "m"))["spec"]["engine"]["image"] == "worker:1"
    await ready.observed()
    await ready.condition("RolloutComplete", "True")
    *_, last = (await pdd("rollout", "history", "m"))[1].splitlines()
    assert last.startswith("3  ")
    assert last.endswith("worker:1")


async def test_only_so_many_revisions_are_kept(ready: Space, pdd: Run) -> None:
    await ready.edit(rollout={"revisionHistoryLimit": 1, "paused": True})
    for tag in (2, 3, 4):
        await ready.edit(engine={"image": f"worker:{tag}"})
        await ready.observed()
    _, text = await pdd("rollout", "history", "m")
    assert [line.rpartition(":")[2] for line in text.splitlines()[1:]] == ["3", "4"]


async def test_doctor_names_what_is_wrong(
    space: Space, operator: Service, kubelet: Kubelet, pdd: Run
) -> None:
    kubelet.verdicts["worker:1"] = "crashing"
    await space.create()
    await space.condition("PrefillAvailable", "False CrashLooping")
    code, text = await pdd("doctor", "m")
    assert code == 1
    assert "✓ the CRD is that of this version" in text
    assert "✗ no operator holds the Lease" in text
    assert "m-prefill-0: CrashLooping" in text


async def test_unknown_deployment_is_an_error_of_one_line(space: Space, pdd: Run) -> None:
    code, text = await pdd("status", "none")
    assert code == 1
    assert text.startswith("error: Error from server (NotFound)")
