"""Whatever was edited, the end is what the spec says."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pd_operator.service import Service
from tests.operator.api_level.operators import quiet
from tests.operator.api_level.space import Space, until
from tests.operator.api_level.wanted import is_as_wanted

pytestmark = pytest.mark.cluster

SEED = 20
STEPS = 200
EDITS: list[dict[str, Any]] = [
    {"prefill": {"replicas": 1}}, {"prefill": {"replicas": 3}}, {"decode": {"replicas": 1}},
    {"decode": {"replicas": 4}}, {"engine": {"image": "worker:2"}},
    {"engine": {"image": "worker:3", "args": ["--log-level=debug"]}},
    {"decode": {"args": ["--max-running-requests=8"]}}, {"decode": {"args": []}},
    {"prefill": {"nodeSelector": {"a": "b"}}}, {"prefill": {"nodeSelector": None}},
    {"router": {"enabled": False}}, {"router": {"enabled": True, "replicas": 2}},
    {"router": {"replicas": 1, "port": 9000}}, {"networkPolicy": {"enabled": True}},
    {"networkPolicy": {"enabled": False}}, {"suspend": True}, {"suspend": False},
    {"decode": {"autoscaling": {"provider": "External", "maxReplicas": 5}}},
    {"decode": {"autoscaling": {"provider": "HPA", "maxReplicas": 5,
                                "metrics": [{"type": "CPU", "target": 50}]}}},
    {"decode": {"autoscaling": None}}, {"model": {"source": "hf://a/b"}},
    {"model": {"source": "hostpath:///models/tiny"}}, {"decode": {"shmSize": "1Gi"}},
    {"rollout": {"maxSurge": 0, "maxUnavailable": 1}}, {"rollout": {"maxSurge": 2}},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_walk_of_edits_ends_where_the_last_one_says(
    space: Space, operator: Service
) -> None:
    draw = random.Random(SEED)
    await space.create()
    for step in range(STEPS):
        await space.edit(**draw.choice(EDITS))
        if step % 20 == 0:
            await space.observed()
    await space.observed()
    await until("as wanted", lambda: is_as_wanted(space))
    await quiet(space, operator)
