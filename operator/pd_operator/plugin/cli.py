"""`kubectl pdd`: the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import tyro

from pd_operator.errors import OperatorError
from pd_operator.options import RenderOptions
from pd_operator.plugin import commands
from pd_operator.plugin.options import Diff, Doctor, Logs, Plan, Rollout, Scale, Status
from pd_operator.rendering import render

Command = (
    Annotated[Plan, tyro.conf.subcommand("plan")]
    | Annotated[RenderOptions, tyro.conf.subcommand("render")]
    | Annotated[Status, tyro.conf.subcommand("status")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
    | Annotated[Diff, tyro.conf.subcommand("diff")]
    | Annotated[Scale, tyro.conf.subcommand("scale")]
    | Annotated[Rollout, tyro.conf.subcommand("rollout")]
    | Annotated[Logs, tyro.conf.subcommand("logs")]
)
COMMANDS: dict[type, Callable[[Any], int]] = {
    Plan: commands.plan,
    RenderOptions: render,
    Status: commands.status,
    Doctor: commands.doctor,
    Diff: commands.diff,
    Scale: commands.scale,
    Rollout: commands.rollout,
    Logs: commands.logs,
}


def main(argv: Sequence[str] | None = None, prog: str = "kubectl pdd") -> int:
    """Run the command line and return the exit status."""
    options: Any = tyro.cli(Command, prog=prog, args=argv, config=(tyro.conf.OmitArgPrefixes,))
    try:
        return COMMANDS[type(options)](options)
    except OperatorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
