"""Which processes a local cluster consists of: names, command lines, cores. Pure.

A worker is started by the same command line that a user would type, so that everything a local
cluster does can be done by hand, part by part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pd_worker.local.options import UpOptions

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process."""

    name: str
    args: tuple[str, ...]
    """Arguments of the `pdserve` command."""
    url: str
    cores: tuple[int, ...]
    """CPU cores it may use; empty: all."""
    log: Path


def ports_needed(options: UpOptions) -> int:
    """How many free ports `plan` wants: one a worker, one more a prefill, one for the router."""
    return len(options.roles) + options.roles.count("prefill") + 1


def plan(
    options: UpOptions, *, ports: Sequence[int], cores: Sequence[int], log_dir: Path
) -> list[Part]:
    """The workers, then the router, whose port is --port unless that is 0."""
    free = iter(ports)
    shares = split_cores(cores, len(options.roles)) if options.pin_cores else {}
    targets: list[str] = []
    parts: list[Part] = []
    for index, role in enumerate(options.roles):
        port, name = next(free), f"{role}-{options.roles[:index].count(role)}"
        bootstrap = next(free) if role == "prefill" else 0
        parts.append(
            Part(
                name=name,
                args=_worker_args(options, role, port, bootstrap),
                url=f"http://{LOOPBACK}:{port}",
                cores=tuple(shares.get(index, ())),
                log=log_dir / f"{name}.log",
            )
        )
        targets += _target(role, port, bootstrap)
    return [*parts, _router(options, targets, options.port or next(free), log_dir)]


def split_cores(cores: Sequence[int], workers: int) -> dict[int, list[int]]:
    """Cores of each worker by index: equal blocks; shared in turn where there are too few."""
    if len(cores) < workers:
        return {index: [cores[index % len(cores)]] for index in range(workers)}
    share, rest = divmod(len(cores), workers)
    starts = [index * share + min(index, rest) for index in range(workers + 1)]
    return {index: list(cores[starts[index] : starts[index + 1]]) for index in range(workers)}


def flags(part: object, *, skip: Sequence[str] = ()) -> Iterator[str]:
    """The arguments from which the config class of `part` is built again, without defaults."""
    assert dataclasses.is_dataclass(part)
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if value == field.default or field.name in skip:
            continue
        flag = field.name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield from (f"--{flag}", str(value))


def _worker_args(options: UpOptions, role: str, port: int, bootstrap: int) -> tuple[str, ...]:
    server = ("--host", LOOPBACK, "--port", str(port))
    registry = ("--bootstrap-port", str(bootstrap)) if bootstrap else ()
    config = [
        *flags(options.model),
        *flags(options.memory),
        *flags(options.scheduler),
        *flags(options.disagg, skip=("bootstrap_port",)),
    ]
    return ("worker", "--role", role, *server, *registry, *_drain(options), *config)


def _drain(options: UpOptions) -> tuple[str, str]:
    return ("--drain-timeout-s", str(options.stop_timeout_s))


def _target(role: str, port: int, bootstrap: int) -> list[str]:
    """What the router is told about one worker."""
    url = f"http://{LOOPBACK}:{port}"
    flag = "--worker" if role == "unified" else f"--{role}"
    return [flag, f"{url},{bootstrap}" if bootstrap else url]


def _router(options: UpOptions, targets: Sequence[str], port: int, log_dir: Path) -> Part:
    host = LOOPBACK if options.host in ("0.0.0.0", "::") else options.host
    return Part(
        name="router",
        args=("router", "--host", options.host, "--port", str(port), *_drain(options), *targets),
        url=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}",
        cores=(),
        log=log_dir / "router.log",
    )
