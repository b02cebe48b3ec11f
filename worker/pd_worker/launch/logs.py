"""How the processes of a worker write their logs."""

from __future__ import annotations

import logging
import sys


def set_up_logging(level: str, who: str) -> None:
    """Lines of `who` go to standard error from `level` up."""
    logging.basicConfig(
        level=level.upper(),
        format=f"%(asctime)s %(levelname)s [{who}] %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )
