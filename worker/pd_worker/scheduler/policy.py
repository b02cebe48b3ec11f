"""PrefillAdder: which prompt tokens go into the next EXTEND step."""

from __future__ import annotations


class PrefillAdder:
    """Budget of one EXTEND step: so many tokens, so many requests."""

    def __init__(self, max_tokens: int, max_reqs: int) -> None:
        self._tokens, self._reqs = max_tokens, max_reqs
        self.chunks: list[int] = []
        """Tokens granted to each request that was added."""

    @property
    def open(self) -> bool:
        """True while one more request can get a token."""
        return self._tokens > 0 and len(self.chunks) < self._reqs

    def add(self, num_tokens: int) -> bool:
        """Grant as many of `num_tokens` as the budget allows; True where that is all of them."""
        chunk = min(num_tokens, self._tokens)
        self._tokens -= chunk
        self.chunks.append(chunk)
        return chunk == num_tokens
