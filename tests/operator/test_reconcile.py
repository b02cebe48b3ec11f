"""The reconciler among the other tasks of the operator's loop."""

from __future__ import annotations

import asyncio
import time

from kubernetes.aio import client

from pd_operator.cluster import Cluster
from pd_operator.journal import Journal
from pd_operator.plan import Surroundings
from pd_operator.reconcile import Reconciler, Tools
from pd_operator.resource import Key
from pd_operator.store import Store
from pd_operator.telemetry import Telemetry
from pd_operator.workqueue import WorkQueue


async def test_others_have_their_turn_between_two_looks() -> None:
    cluster, queue = Cluster(client.ApiClient()), WorkQueue(time.monotonic)
    tools = Tools(
        cluster=cluster,
        store=Store(),
        queue=queue,
        journal=Journal(cluster, "test"),
        telemetry=Telemetry(),
        prober=None,
    )
    for number in range(100):
        queue.add(Key("llm", f"gone-{number}"))
    worker = asyncio.create_task(Reconciler(tools, Surroundings(), 300.0).work())
    turns = 0
    while not queue.idle:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 100  # a lease is renewed and probes are answered, however many there are
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    await cluster.close()
