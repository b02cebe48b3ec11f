"""Both roles governed in a queueing model: they settle, keep their bounds and do not flap."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pd_operator.proposal import Target
from pd_operator.scaling import Observed, RoleScaling, ScalingSpec
from pd_operator.sizing import Bounds, Size
from tests.operator.scaling.fleet import INTERVAL_S, Fleet, Machine, run

PREFILL = RoleScaling(
    bounds=Bounds(least=1, most=30),
    targets=(Target(type="QueueDepth", value=4), Target(type="TTFT", value=0.8)),
)
DECODE = RoleScaling(
    bounds=Bounds(least=1, most=30),
    targets=(Target(type="KVUtilization", value=0.8), Target(type="ITL", value=0.05)),
)
SPEC = ScalingSpec(prefill=PREFILL, decode=DECODE)
HOUR = 3600


def start() -> Fleet:
    return Fleet(Size(prefill=2, decode=4), seed=1)


def test_step_up_is_followed_and_the_queue_clears():
    course = run(start(), SPEC, lambda now: 10 if now < 1800 else 60, 2 * HOUR, noise=0.05)
    assert course.backlogs[-1] < 20
    assert 6 <= course.sizes[-1].prefill <= 9
    assert 5 <= course.sizes[-1].decode <= 9
    assert course.turns("prefill", since_s=1800) <= 1
    assert course.turns("decode", since_s=1800) <= 1


def test_step_down_is_followed_without_harm():
    course = run(start(), SPEC, lambda now: 60 if now < HOUR else 8, 3 * HOUR, noise=0.05)
    assert course.sizes[-1].prefill <= 2
    assert course.sizes[-1].decode <= 3
    assert max(course.backlogs[2 * HOUR // INTERVAL_S :]) < 30


def test_short_spike_moves_nothing():
    calm = run(start(), SPEC, lambda now: 10, 1200)
    spiky = run(start(), SPEC, lambda now: 40 if 600 <= now < 606 else 10, 1200)
    assert spiky.sizes == calm.sizes


def test_dead_metrics_keep_the_size():
    def dead(now: float, observed: Observed) -> Observed:
        if now < 600:
            return observed
        return Observed(
            prefill=replace(observed.prefill, loads=()), decode=replace(observed.decode, loads=())
        )

    course = run(start(), SPEC, lambda now: 15 if now < 900 else 90, HOUR, scrape=dead)
    held = course.sizes[600 // INTERVAL_S :]
    assert set(held) == {held[0]}
    assert course.decisions[-1].prefill.reason == "MetricsStale"


def test_without_nodes_nothing_cascades_and_the_excess_goes_with_the_load():
    fleet = Fleet(Size(prefill=2, decode=4), nodes=8, seed=1)
    course = run(fleet, SPEC, lambda now: 90 if now < HOUR else 1, 4 * HOUR)
    pending = [size.prefill + size.decode - 8 for size in course.sizes]
    assert max(pending) <= 8
    assert "InsufficientCapacity" in course.reasons("prefill") | course.reasons("decode")
    assert course.sizes[-1].prefill + course.sizes[-1].decode <= 4


@pytest.mark.parametrize(
    ("prompt", "output", "load"), [(4000, 200, 15), (200, 800, 10)], ids=["long in", "long out"]
)
def test_the_role_that_lacks_grows(prompt, output, load):
    fleet = Fleet(Size(prefill=1, decode=1), prompt=prompt, output=output, seed=2)
    course = run(fleet, SPEC, lambda now: load, 2 * HOUR)
    size = course.sizes[-1]
    assert (size.prefill > size.decode) == (prompt > output)
    assert course.backlogs[-1] < 30


@settings(max_examples=12, deadline=None)
@given(
    load=st.floats(0.5, 60),
    prompt=st.sampled_from([200.0, 1000.0, 3000.0]),
    output=st.sampled_from([200.0, 400.0, 800.0]),
    size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    startup=st.sampled_from([15, 90, 400]),
    noise=st.sampled_from([0.0, 0.05, 0.1]),
    knows=st.booleans(),
    seed=st.integers(0, 9),
)
def test_constant_load_settles_and_stays(load, prompt, output, size, startup, noise, knows, seed):
    """After two hours a role turns at most twice an hour: one try to lower, taken back."""
    fleet = Fleet(
        Size(prefill=size[0], decode=size[1]),
        machine=Machine(startup_s=startup),
        prompt=prompt,
        output=output,
        seed=seed,
        knows_utilization=knows,
    )
    course = run(fleet, SPEC, lambda now: load, 4 * HOUR, noise=noise)
    assert all(1 <= s.prefill <= 30 and 1 <= s.decode <= 30 for s in course.sizes)
    for role in ("prefill", "decode"):
        assert course.turns(role, since_s=2 * HOUR) <= 4
    served = load * prompt / 10_000 < 25 and load * output * 0.06 * (prompt + output) < 2_000_000
    if served:
        assert course.backlogs[-1] < load * 20 + 20


@settings(max_examples=12, deadline=None)
@given(
    loads=st.lists(st.floats(0, 120), min_size=1, max_size=6),
    budget=st.integers(6, 40),
    nodes=st.integers(4, 60),
    deaf=st.floats(0, 0.5),
    seed=st.integers(0, 9),
)
def test_no_load_drives_it_out_of_its_limits(loads, budget, nodes, deaf, seed):
    spec = ScalingSpec(
        prefill=PREFILL,
        decode=DECODE,
        ratio=(Size.parse("1P4D"), Size.parse("2P1D")),
        budget=budget,
        prefill_devices=2,
    )
    fleet = Fleet(Size(prefill=1, decode=2), nodes=nodes, seed=seed)

    def partly(_: float, observed: Observed) -> Observed:
        heard = tuple(x for x in observed.prefill.loads if fleet.random.random() > deaf)
        return replace(observed, prefill=replace(observed.prefill, loads=heard))

    course = run(
        fleet, spec, lambda now: loads[int(now // 900) % len(loads)], 2 * HOUR, scrape=partly
    )
    for size in course.sizes:
        assert 1 <= size.prefill <= 30
        assert 1 <= size.decode <= 30
        assert 2 * size.prefill + size.decode <= budget
        assert size.prefill * 4 >= size.decode
        assert size.prefill <= 2 * size.decode
