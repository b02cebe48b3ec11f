"""transformers' progress bars, led to a callback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging

from pd_worker.model.progress import Progress


@contextmanager
def bars_to(progress: Progress, what: str) -> Iterator[None]:
    """Report transformers' progress bars as `what` to `progress`, not to the terminal."""

    class Bar:
        def __init__(self, items: Any = (), **_: Any) -> None:
            self._items = items

        def __iter__(self) -> Iterator[Any]:
            total = max(1, len(self._items))
            for done, item in enumerate(self._items):
                progress(done / total, what)
                yield item

    before = logging.set_tqdm_hook(lambda factory, args, kwargs: Bar(*args, **kwargs))
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)
