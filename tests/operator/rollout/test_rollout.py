"""Rollouts against a small StatefulSet controller: who serves meanwhile, and how they end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pd_operator.fleet import Fleet, Worker
from pd_operator.rollout import Goal, Now, RoleGoal, RoleStep, step
from tests.operator.rollout.statefulsets import PACES, Template, World

A, A2, B, C = (
    Template("a", "A"),
    Template("a2", "A"),
    Template("b", "B"),
    Template("c", "C"),
)
BAD = Template("bad", "BAD", good=False)
BAD_A = Template("bad-a", "A", good=False)


def goal(prefill: int, decode: int, surge: int = 1, unavailable: int = 0, **more: Any) -> Goal:
    key = more.pop("key", "A")
    roles = (
        RoleGoal(
            replicas=replicas, key=key, max_surge=surge, max_unavailable=unavailable, devices=1
        )
        for replicas in (prefill, decode)
    )
    return Goal(prefill=next(roles), decode=next(roles), **({"revision": "a"} | more))


def change(world: World, prefill: Template, decode: Template, **more: Any) -> None:
    """Edit the templates."""
    world.templates = prefill, decode
    world.goal = replace(
        world.goal,
        prefill=replace(world.goal.prefill, key=prefill.key),
        decode=replace(world.goal.decode, key=decode.key),
        revision=f"{prefill.name}/{decode.name}",
        **more,
    )


def world(*args: Any, start: Template = A, **kwargs: Any) -> World:
    own = {name: kwargs.pop(name) for name in ("nodes", "pace") if name in kwargs}
    return World(goal(*args, key=start.key, **kwargs), (start, start), **own)


def least(found: World) -> tuple[int, int]:
    """Fewest workers that served at a time."""
    return min(s.prefill for s in found.course), min(s.decode for s in found.course)


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("new", [B, A2], ids=["new key", "same key"])
@pytest.mark.parametrize(
    ("size", "surge", "unavailable", "serving"),
    [
        ((1, 1), 1, 0, (1, 1)),
        ((2, 4), 1, 0, (2, 4)),
        ((2, 4), 0, 1, (1, 3)),
        ((3, 5), 2, 1, (2, 4)),
        ((4, 1), 1, 0, (4, 1)),
        ((5, 5), 0, 3, (2, 2)),
    ],
)
def test_enough_serve_at_all_times(size, surge, unavailable, serving, new, pace):
    found = world(*size, surge, unavailable, pace=pace)
    change(found, new, new)
    found.settle()
    assert least(found) >= serving
    assert max(s.prefill.replicas for s in found.steps) <= size[0] + surge
    assert max(s.decode.replicas for s in found.steps) <= size[1] + surge


@pytest.mark.parametrize("size", [(1, 1), (1, 4), (4, 1)])
def test_role_without_room_is_interrupted_once_and_never_stuck(size):
    found = world(*size, 0, 1)
    change(found, B, B)
    found.settle()
    serves = [bool(pair.prefill and pair.decode) for pair in found.course]
    assert serves.count(False) <= 8
    assert "".join("01"[each] for each in serves).strip("1").strip("0") == ""


def test_edit_of_one_role_leaves_the_other_one_alone():
    found = world(2, 3)
    before = found.uids()
    change(found, A2, A)
    found.settle()
    assert found.uids()[1] == before[1]
    assert not found.uids()[0] & before[0]


def test_old_workers_go_on_while_new_ones_fail_and_the_next_template_repairs_it():
    found = world(2, 3)
    change(found, BAD, BAD)
    found.wait(60)
    assert found.steps[-1].reason == "UpdatedWorkersBroken"
    change(found, C, C)
    found.settle()
    assert least(found) == (2, 3)


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("surge", [0, 1])
def test_broken_old_workers_hold_up_nothing(surge, pace):
    found = world(3, 2, surge, 1 - surge, start=BAD, pace=pace)
    change(found, A, A)
    found.settle()


def test_half_broken_old_revision_is_replaced():
    found = world(4, 4, 0, 1)
    change(found, BAD_A, A)
    found.wait(60)
    change(found, BAD_A, A2)
    found.wait(60)
    change(found, C, C)
    found.settle()
    assert least(found) >= (3, 3)


def test_way_back_keeps_the_old_workers():
    found = world(2, 2)
    before = found.uids()
    change(found, B, B)
    found.wait(2)
    change(found, A, A)
    found.settle()
    assert found.uids() == before
    assert least(found) == (2, 2)


def test_third_template_in_the_middle():
    found = world(3, 5)
    change(found, B, B)
    found.wait(14)
    change(found, C, C)
    found.settle()
    assert least(found) == (3, 5)


def test_pause_holds_and_resume_goes_on():
    found = world(2, 4)
    change(found, B, B, paused=True)
    before = found.uids()
    found.wait(40)
    assert found.uids() == before
    assert found.steps[-1].phase == "Paused"
    change(found, B, B, paused=False)
    found.wait(8)
    change(found, B, B, paused=True)
    found.wait(10)
    half = found.uids()
    found.wait(40)
    assert found.uids() == half
    change(found, B, B, paused=False)
    found.settle()
    assert least(found) == (2, 4)


def test_roles_that_would_not_pair_are_not_rolled_out():
    found = world(2, 2)
    before = found.uids()
    change(found, B, C)
    found.wait(30)
    assert (found.steps[-1].phase, found.steps[-1].reason) == ("Stalled", "PairingKeyMismatch")
    assert found.uids() == before


def test_in_place_rolls_each_role_by_itself():
    found = world(2, 2)
    change(found, B, C, strategy="InPlace")
    found.settle()


def test_recreate_takes_all_old_workers_first():
    found = world(2, 3)
    change(found, B, B, strategy="Recreate")
    found.wait(1)
    assert found.serving().prefill == 0
    found.settle()
    assert max(s.prefill.replicas for s in found.steps) == 2


def test_stalls_after_the_deadline_and_recovers():
    found = world(1, 1, deadline_s=30)
    change(found, BAD, BAD)
    found.wait(29)
    assert found.steps[-1].phase == "Progressing"
    found.wait(2)
    stalled = found.steps[-1]
    assert (stalled.phase, stalled.reason) == ("Stalled", "ProgressDeadlineExceeded")
    assert "UpdatedWorkersBroken" in stalled.message
    change(found, B, B)
    found.settle()
    assert least(found) == (1, 1)


def test_lost_worker_after_the_end_is_no_rollout():
    found = world(2, 2, deadline_s=10)
    change(found, B, B)
    found.settle()
    found.sets[0].pods[1].crashed = True
    found.wait(30)
    assert found.steps[-1].phase == "Complete"


def test_surge_without_a_node_waits_and_says_so():
    found = world(1, 1, nodes=2)
    change(found, B, B)
    found.wait(40)
    assert found.steps[-1].reason == "WaitingForSurgeCapacity"
    assert least(found) == (1, 1)
    found.nodes = 4
    found.settle()
    assert least(found) == (1, 1)


@pytest.mark.parametrize(
    ("budget", "most", "serving"), [(8, 8, (2, 4)), (7, 7, (2, 3)), (6, 6, (1, 3))]
)
def test_budget_counts_the_surge(budget, most, serving):
    found = world(2, 4, budget=budget)
    change(found, B, B)
    found.settle()
    assert max(s.prefill.replicas + s.decode.replicas for s in found.steps) <= most
    assert least(found) >= serving


def test_growth_comes_up_new_and_shrinking_waits_for_the_end():
    found = world(2, 2)
    change(found, B, B)
    found.wait(4)
    found.goal = replace(found.goal, decode=replace(found.goal.decode, replicas=5))
    found.wait(4)
    assert found.sets[1].pods[4].template == B
    found.goal = replace(found.goal, decode=replace(found.goal.decode, replicas=1))
    found.settle()
    assert least(found) >= (2, 1)


def test_scale_down_keeps_a_stand_in_for_a_worker_that_is_not_ready():
    found = world(4, 2)
    found.sets[0].pods[0].crashed = True
    found.goal = goal(2, 2)
    found.wait(20)
    assert found.sets[0].replicas == 3
    found.sets[0].pods[0].crashed = False
    found.settle()
    assert found.sets[0].replicas == 2


def test_scale_down_does_not_wait_for_workers_that_never_came():
    found = world(2, 2, nodes=4)
    found.goal = goal(5, 2)
    found.wait(20)
    found.goal = goal(1, 2)
    found.settle()


def test_blip_of_one_worker_releases_nothing():
    found = world(1, 4)
    change(found, B, B)
    found.wait(2)
    found.sets[0].pods[0].age = 0
    found.wait(2)
    assert [pod.template for pod in found.sets[1].pods.values()].count(A) == 4


def test_new_deployment_simply_comes_up():
    empty = Now(prefill=Fleet(), decode=Fleet())
    decided = step(goal(2, 4), empty, None, 0.0)
    assert decided.prefill == RoleStep(replicas=2, partition=0)
    assert decided.decode == RoleStep(replicas=4, partition=0)
    assert decided.phase == "Progressing"


def test_suspended_deployment_has_no_workers():
    found = world(2, 4)
    found.goal = goal(0, 0)
    found.settle()
    assert found.uids() == [set(), set()]


def test_nothing_is_released_before_the_surge_has_come():
    old = Worker(ordinal=0, new=False, key="a", state="ready")
    fleet = Fleet(replicas=1, current=False, workers=(old,))
    goal = RoleGoal(replicas=1, key="b", max_surge=1)
    first = step(Goal(prefill=goal, decode=goal), Now(prefill=fleet, decode=fleet), None, clock=0.0)
    assert (first.prefill.replicas, first.prefill.partition) == (2, 1)
    assert (first.decode.replicas, first.decode.partition) == (2, 1)
