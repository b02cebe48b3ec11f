"""Any edits at any moment: what serves goes on serving, limits are kept, good templates win."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.operator.rollout.statefulsets import PACES, Template, World
from tests.operator.rollout.test_rollout import change, goal

SIZES = st.tuples(st.integers(1, 5), st.integers(1, 5))


class Rollouts(RuleBasedStateMachine):
    """Edits between ticks; workers fail only by what is edited."""

    crashes = False
    world: World | None = None

    @initialize(
        size=SIZES,
        surge=st.integers(0, 2),
        unavailable=st.integers(0, 2),
        pace=st.sampled_from(PACES),
        budget=st.none() | st.integers(10, 14),
    )
    def start(self, size, surge, unavailable, pace, budget):
        first = Template("t0", "k0")
        self.surge, self.unavailable = surge, unavailable
        self.number = 0
        self.most = list(size)
        self.smooth = surge > 0 and budget is None
        self.world = World(
            goal(*size, surge, unavailable, key="k0", budget=budget, deadline_s=1e9),
            (first, first),
            pace=pace,
        )

    def template(self, key: str, good: bool) -> Template:
        self.number += 1
        return Template(f"t{self.number}", key, good)

    @rule(good=st.booleans())
    def change_both(self, good):
        key = f"k{self.number + 1}"
        change(self.world, self.template(key, good), self.template(key, good))

    @rule(role=st.integers(0, 1), good=st.booleans())
    def change_one(self, role, good):
        templates = list(self.world.templates)
        templates[role] = self.template(templates[role].key, good)
        change(self.world, *templates)

    @rule(size=SIZES)
    def resize(self, size):
        self.most = [max(pair) for pair in zip(self.most, size, strict=True)]
        self.smooth = False
        roles = (self.world.goal.prefill, self.world.goal.decode)
        prefill, decode = (
            replace(own, replicas=count) for own, count in zip(roles, size, strict=True)
        )
        self.world.goal = replace(self.world.goal, prefill=prefill, decode=decode)

    @rule(paused=st.booleans())
    def pause(self, paused):
        self.world.goal = replace(self.world.goal, paused=paused)

    @rule()
    def forget(self):
        self.world.progress = None

    @precondition(lambda self: self.crashes)
    @rule(role=st.integers(0, 1), which=st.integers(0, 9))
    def evict(self, role, which):
        pods = list(self.world.sets[role].pods.values())
        if pods:
            pods[which % len(pods)].dying = 1

    @rule(ticks=st.integers(1, 12))
    def go_on(self, ticks):
        self.world.wait(ticks)

    @invariant()
    def limits_are_kept(self):
        for fleet, most in zip(self.world.sets, self.most, strict=True):
            assert 0 <= fleet.partition <= fleet.replicas <= most + self.surge

    @invariant()
    def what_serves_goes_on(self):
        if self.smooth and not self.crashes:
            for pair in self.world.course:
                for role, count in zip(self.world.wanted, (pair.prefill, pair.decode), strict=True):
                    assert count >= role - self.unavailable

    def teardown(self):
        if self.world is None:
            return
        self.world.goal = replace(self.world.goal, paused=False)
        key = f"k{self.number + 1}"
        change(self.world, self.template(key, True), self.template(key, True))
        self.world.settle()


class Evictions(Rollouts):
    """Workers are evicted as well: it still ends well."""

    crashes = True


TestRollouts = Rollouts.TestCase
TestRollouts.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestEvictions = Evictions.TestCase
TestEvictions.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
