"""The table behind the BootstrapServer: which prefill ranks are registered, and until when.

Pure: the caller passes the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from pd_worker.transfer.args import PrefillServerInfo, RankAddress, Route

MAX_ROWS = 4096
SHARED = (
    "tp_size",
    "cp_size",
    "dp_size",
    "pp_size",
    "page_size",
    "kv_cache_dtype",
    "kv_layout",
    "pairing_key",
    "protocol_version",
)
"""What all ranks of one instance have in common."""


class RouteRefused(Exception):
    """A row is not admitted: `field` names what is wrong with it; 409 for another's live row."""

    def __init__(self, status: int, field: str, message: str) -> None:
        super().__init__(message)
        self.status, self.field, self.message = status, field, message


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    route: Route
    expires: float


class Registry:
    """Rows by rank, each with a lease."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int, int, int], _Row] = {}

    def put(self, route: Route, now: float, *, trusted: bool) -> None:
        """Add or renew a row.

        A live row is replaced by another process only if the caller proved to know the secret
        (`trusted`) or comes from the same address: a restarted prefill gets in at once.
        Raises RouteRefused.
        """
        self._expire(now)
        self._check_rank(route)
        self._check_owner(route, trusted)
        self._check_shared(route)
        if len(self._rows) >= MAX_ROWS and route.rank not in self._rows:
            raise RouteRefused(400, "rank", "the table is full")
        self._rows[route.rank] = _Row(route=route, expires=now + route.lease_ttl_s)

    def delete(self, incarnation: str) -> int:
        """Take out the rows of one process; returns how many."""
        mine = [key for key, row in self._rows.items() if row.route.incarnation == incarnation]
        for key in mine:
            del self._rows[key]
        return len(mine)

    def info(self, now: float) -> PrefillServerInfo | None:
        """The instance, or None while a rank is missing."""
        self._expire(now)
        routes = [row.route for row in self._rows.values()]
        if not routes:
            return None
        first = routes[0]
        if len(routes) < first.dp_size * first.cp_size * first.tp_size * first.pp_size:
            return None
        shared = {name: getattr(first, name) for name in SHARED}
        return PrefillServerInfo(
            **shared, incarnations=sorted({route.incarnation for route in routes})
        )

    def address(self, rank: tuple[int, int, int, int]) -> RankAddress | None:
        """Of one rank (dp, cp, tp, pp)."""
        row = self._rows.get(rank)
        if row is None:
            return None
        route = row.route
        return RankAddress(
            rank_ip=route.rank_ip, rank_port=route.rank_port, incarnation=route.incarnation
        )

    def _expire(self, now: float) -> None:
        self._rows = {key: row for key, row in self._rows.items() if row.expires > now}

    @staticmethod
    def _check_rank(route: Route) -> None:
        for name in ("dp", "cp", "tp", "pp"):
            rank, size = getattr(route, f"{name}_rank"), getattr(route, f"{name}_size")
            if rank >= size:
                raise RouteRefused(400, f"{name}_rank", f"{name}_rank {rank} is not below {size}")

    def _check_owner(self, route: Route, trusted: bool) -> None:
        row = self._rows.get(route.rank)
        if row is None or row.route.incarnation == route.incarnation:
            return
        if not trusted and row.route.rank_ip != route.rank_ip:
            raise RouteRefused(409, "rank_ip", "the rank is registered by a live process elsewhere")

    def _check_shared(self, route: Route) -> None:
        for row in self._rows.values():
            if row.route.rank == route.rank:
                continue
            for name in SHARED:
                if getattr(row.route, name) != getattr(route, name):
                    raise RouteRefused(
                        400,
                        name,
                        f"{name} is {getattr(route, name)!r} here and "
                        f"{getattr(row.route, name)!r} on rank {row.route.rank}",
                    )
