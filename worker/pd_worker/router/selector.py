"""Which pair gets a request: the fleet's state narrowed to able workers, then the policies."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pd_worker.config import Role
from pd_worker.errors import Unavailable
from pd_worker.router.call import Call
from pd_worker.router.failure import UnknownModel
from pd_worker.router.options import RouterOptions
from pd_worker.router.pairing import Route, heads, partners, why_none
from pd_worker.router.policy import POLICIES, Policy
from pd_worker.router.prompt import Prompt
from pd_worker.router.registry import Registry
from pd_worker.router.worker import Worker

RETRY_AFTER_S = 2


class Selector:
    """Chooses routes; one policy per role, because each keeps its own memory."""

    def __init__(self, registry: Registry, options: RouterOptions) -> None:
        self._registry = registry
        self._policies: dict[Role, Policy] = {
            "prefill": POLICIES[options.policy](),
            "unified": POLICIES[options.policy](),
            "decode": POLICIES[options.decode_policy](),
        }

    def choose(self, call: Call, avoid: Collection[str] = ()) -> Route:
        """A route for one attempt, without the workers (URLs) in `avoid` where that is possible.

        Raises Unavailable when no worker can serve now, UnknownModel when none serves the model.
        """
        usable = self._able(call)
        wanted = [worker for worker in usable if worker.spec.url not in avoid]
        workers = wanted if heads(wanted) else usable
        able = heads(workers)
        if not able:
            why = why_none(list(self._registry)) or "every able worker failed too often lately"
            raise Unavailable(why, retry_after_s=RETRY_AFTER_S)
        head = self._pick(able, call.prompt)
        if head.spec.role == "unified":
            return Route(prefill=None, decode=head)
        return Route(prefill=head, decode=self._pick(partners(workers, head), call.prompt))

    @property
    def incomplete_s(self) -> float:
        """Seconds since the fleet could serve a request; 0 while it can."""
        return self._registry.incomplete_s

    def can_avoid(self, call: Call, avoid: Collection[str]) -> bool:
        """There is a route without the workers in `avoid`."""
        return bool(heads([w for w in self._able(call) if w.spec.url not in avoid]))

    def _able(self, call: Call) -> list[Worker]:
        """Usable workers of the request's model. With one model in the fleet the name is left for
        the workers to judge, which know aliases."""
        models = {worker.model for worker in self._registry if worker.model}
        if call.model and call.model not in models and len(models) > 1:
            raise UnknownModel(f"no worker serves {call.model!r}", param="model")
        usable = [worker for worker in self._registry if worker.usable]
        if call.model not in models:
            return usable
        return [worker for worker in usable if worker.model == call.model]

    def _pick(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        """A worker whose breaker waits for a try goes first: no policy must starve its return."""
        trial = next((worker for worker in workers if worker.breaker.wants_probe), None)
        return trial or self._policies[workers[0].spec.role].pick(workers, prompt)
