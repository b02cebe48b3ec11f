"""The `pdserve` command: finds the subcommand, builds its options, runs it.

A subcommand's modules are imported only when it is chosen, so that `pdserve router` needs neither
torch nor a second to show its help. Every error of ours ends here as one line and an exit status:
2 for a wrong command line, 1 for the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

import tyro

from pd_worker.errors import ConfigError, PdserveError

USAGE_ERROR = 2
INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One subcommand: its options' class is the command line, its function does the work."""

    summary: str
    options: str = ""
    """`module:Class` that tyro builds from the arguments; empty: `run` takes them as they
    are, and the program's name."""
    run: str
    """`module:function` from those options to the exit status."""


COMMANDS = {
    "up": Command(
        summary="a local cluster: router, prefill and decode workers on this machine",
        options="pd_worker.local.options:UpOptions",
        run="pd_worker.local.cluster:run",
    ),
    "worker": Command(
        summary="one worker: unified, prefill or decode",
        options="pd_worker.config:WorkerConfig",
        run="pd_worker.launch.worker:run_worker",
    ),
    "router": Command(
        summary="the front door of a fleet of workers",
        options="pd_worker.router.options:RouterOptions",
        run="pd_worker.router.app:run",
    ),
    "chat": Command(
        summary="talk to a running server in the terminal",
        options="pd_worker.chat:ChatOptions",
        run="pd_worker.chat:run",
    ),
    "demo": Command(
        summary="start a pair, ask a question, show where the time went",
        options="pd_worker.demo:DemoOptions",
        run="pd_worker.demo:run",
    ),
    "fetch": Command(
        summary="download a small model and convert it once",
        options="pd_worker.fetch:FetchOptions",
        run="pd_worker.fetch:run",
    ),
    "bench transfer": Command(
        summary="speed of the KV transports beside the machine's ceilings",
        options="pd_worker.bench.transfer:TransferBench",
        run="pd_worker.bench.transfer:main",
    ),
    "bench serve": Command(
        summary="load on a running server: TTFT, ITL, throughput",
        options="pd_worker.bench.serve:ServeBench",
        run="pd_worker.bench.serve:run",
    ),
    "k8s": Command(
        summary="deployments on Kubernetes: plan, status, doctor, diff, scale, rollout, logs",
        run="pd_operator.plugin.cli:main",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except ConfigError as error:
        return _fail(str(error), USAGE_ERROR)
    except PdserveError as error:
        return _fail(str(error), 1)
    except ModuleNotFoundError as error:
        return _fail(_missing_package(error), 1)
    except KeyboardInterrupt:
        return INTERRUPTED


def _dispatch(words: list[str]) -> int:
    if words[:1] in (["version"], ["--version"]):
        print(metadata.version("pdserve"))
        return 0
    name = _command_name(words)
    if name:
        return _run(name, words[len(name.split()) :])
    asked = [word for word in words if word not in ("-h", "--help")]
    group = {n: c for n, c in COMMANDS.items() if asked and n.startswith(f"{asked[0]} ")}
    if asked and not (group and len(asked) == 1):
        return _fail(f"no command {' '.join(asked)!r}; see `pdserve --help`", USAGE_ERROR)
    print(_overview(group or COMMANDS))
    return 0 if asked != words or not words else USAGE_ERROR


def _command_name(words: list[str]) -> str:
    """The command that `words` begin with; empty where there is none."""
    heads: Iterable[str] = (" ".join(words[:2]), " ".join(words[:1]))
    return next((head for head in heads if head in COMMANDS), "")


def _run(name: str, args: list[str]) -> int:
    command = COMMANDS[name]
    run: Callable[..., int] = _load(command.run)
    if not command.options:
        return run(args, f"pdserve {name}")
    options = tyro.cli(
        _load(command.options),
        prog=f"pdserve {name}",
        args=args,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return run(options)


def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def _overview(commands: dict[str, Command]) -> str:
    lines = ["usage: pdserve COMMAND [OPTIONS]      (pdserve COMMAND --help explains them)", ""]
    lines += [f"  {name:<15} {command.summary}" for name, command in commands.items()]
    lines += [f"  {'version':<15} print the version"] if commands is COMMANDS else []
    return "\n".join(lines)


def _missing_package(error: ModuleNotFoundError) -> str:
    if (error.name or "").startswith(("pd_worker", "pd_operator")):
        raise error
    extra = "operator" if error.name == "yaml" else "worker"
    return f"{error.name} is not installed; pip install 'pdserve[{extra}]' brings it"


def _fail(message: str, status: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
