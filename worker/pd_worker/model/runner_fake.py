"""A runner without a model, for tests of everything around one: its "KV" are real bytes.

Each token slot of the pool holds a hash of (token, position, element). The next token of a request
is a hash over all that is stored in its slots, read through its page table. So a page that is
missing, stale, swapped or another request's gives other tokens, like a real model but exactly and
at no cost. Temperature, seed, banned tokens and grammar masks work; penalties and bias do not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pd_worker.core.batch import BatchResult, ForwardBatch, Ints, PromptLogprobs
from pd_worker.memory.layout import KVLayout
from pd_worker.memory.pages import Pages
from pd_worker.messages import TopLogprobs
from pd_worker.model.base import ModelGeometry
from pd_worker.model.counter_rng import Words, mix

_POISON = np.uint32(0xFFFFFFFF)


def fake_geometry(*, vocab_size: int = 512, eos_ids: tuple[int, ...] = (0,)) -> ModelGeometry:
    """A model of two layers with two KV heads of two elements: 64 bytes of KV a token."""
    return ModelGeometry(
        model_type="fake",
        num_layers=2,
        num_heads=2,
        num_kv_heads=2,
        head_dim=2,
        vocab_size=vocab_size,
        context_length=4096,
        eos_ids=eos_ids,
        dtype="float32",
        sliding_windows=(None, None),
        fingerprint=f"fake-{vocab_size}",
    )


def _mixed(*numbers: int) -> int:
    """One hash of a few numbers."""
    state = np.zeros(1, np.uint64)
    for number in numbers:
        state = mix(state ^ np.array([number % 2**64], np.uint64))
    return int(state[0])


class FakeKVPool:
    """The pool of KVPool's layout as numpy words; has KVPool's facts, save and load."""

    def __init__(self, layout: KVLayout, *, buffer: memoryview | None = None) -> None:
        """`buffer`: shared memory to lie over, as for KVPool."""
        self.layout = layout
        if buffer is None:
            self.words = np.zeros(layout.shape, np.uint32)
        else:
            flat = np.frombuffer(buffer, np.uint32, layout.nbytes // 4)
            self.words = flat.reshape(layout.shape)

    @property
    def data_ptr(self) -> int:
        """Address of page 0."""
        return int(self.words.ctypes.data)

    @property
    def nbytes(self) -> int:
        """Bytes of the pool."""
        return self.layout.nbytes

    @property
    def page_nbytes(self) -> int:
        """Bytes of one page of all layers."""
        return self.layout.page_nbytes

    @property
    def num_pages(self) -> int:
        """Pages, the reserved one included."""
        return self.layout.num_pages

    def poison(self, pages: Pages) -> None:
        """Fill whole pages with a value that no token has."""
        self.words[pages] = _POISON

    def save(self, pages: Pages) -> npt.NDArray[np.uint32]:
        """A copy of whole pages."""
        return self.words[pages]

    def load(self, pages: Pages, data: npt.NDArray[np.uint32]) -> None:
        """Write what save() returned into as many other pages."""
        self.words[pages] = data

    def write(self, slots: Ints, tokens: Ints, positions: Ints) -> None:
        """Store the KV of new tokens."""
        page_size, cell = self.layout.page_size, self._cell()
        base = mix(mix(tokens.astype(np.uint64)) ^ positions.astype(np.uint64))
        values = mix(base[:, None] + cell).astype(np.uint32)
        pages, offsets = slots // page_size, slots % page_size
        self.words[pages, :, :, :, offsets] = values.reshape(len(slots), *self._cell_shape())

    def digests(self, pages: Pages, num_tokens: int) -> Words:
        """[num_tokens]: for each token a hash of its own and all earlier tokens' KV."""
        by_token = np.moveaxis(self.words[pages], 4, 1)
        stored = by_token.reshape(-1, self._cell().size)[:num_tokens].astype(np.uint64)
        salt = mix(np.arange(num_tokens, dtype=np.uint64))[:, None] ^ self._cell()
        sums: Words = mix(stored ^ salt).sum(axis=1, dtype=np.uint64)
        return np.cumsum(sums, dtype=np.uint64)

    def _cell_shape(self) -> tuple[int, int, int, int]:
        layout = self.layout
        return layout.num_layers, 2, layout.num_kv_heads, layout.head_dim

    def _cell(self) -> Words:
        """A number for each element that one token stores."""
        return np.arange(np.prod(self._cell_shape()), dtype=np.uint64)


class FakeRunner:
    """The contract of ModelRunner over a FakeKVPool."""

    def __init__(self, geometry: ModelGeometry, kv_pool: FakeKVPool, *, num_rows: int) -> None:
        self.geometry, self.kv_pool = geometry, kv_pool
        self.token_buffer = np.zeros(num_rows, np.int64)

    def set_tokens(self, rows: Ints, tokens: Ints) -> None:
        """See Runner."""
        self.token_buffer[rows] = tokens

    def forward(self, batch: ForwardBatch) -> BatchResult:
        """See Runner."""
        tokens = batch.input_ids if len(batch.input_ids) else self.token_buffer[batch.rows]
        ends = batch.prefix_lens + batch.extend_lens
        starts = np.repeat(batch.prefix_lens - _offsets(batch.extend_lens), batch.extend_lens)
        self.kv_pool.write(batch.out_slots, tokens, np.arange(len(tokens)) + starts)
        used = -(-ends // self.kv_pool.layout.page_size)
        digests = [
            self.kv_pool.digests(table[:pages], end)
            for table, pages, end in zip(batch.page_table, used, ends, strict=True)
        ]
        result = self._sample(batch, [int(digests[b][-1]) for b in batch.sampled])
        self.set_tokens(batch.rows[batch.sampled], result.tokens)
        result.prompt.extend(self._score_prompts(batch, digests))
        return result

    def _sample(self, batch: ForwardBatch, digests: list[int]) -> BatchResult:
        tokens = [self._draw(batch, s, digest) for s, digest in enumerate(digests)]
        counts = batch.sampling.num_logprobs.tolist()
        scores = [
            self._score(digest, token) if count >= 0 else float("nan")
            for digest, token, count in zip(digests, tokens, counts, strict=True)
        ]
        return BatchResult(
            tokens=np.array(tokens, np.int64),
            logprobs=np.array(scores, np.float32),
            top=[self._top(digest, count) for digest, count in zip(digests, counts, strict=True)],
        )

    def _draw(self, batch: ForwardBatch, s: int, digest: int) -> int:
        sampling = batch.sampling
        if sampling.temperature[s] > 0:
            digest = _mixed(digest, int(sampling.seeds[s]), int(sampling.positions[s]))
        allowed = np.ones(self.geometry.vocab_size, np.bool_)
        if sampling.mask is not None:
            bits = np.unpackbits(sampling.mask[s].view(np.uint8), bitorder="little")
            allowed &= bits[: len(allowed)].astype(np.bool_)
        allowed[list(sampling.banned[s])] = False
        choices = np.flatnonzero(allowed)
        return int(choices[digest % len(choices)])

    def _score(self, digest: int, token: int) -> float:
        """A stand-in for the log-probability of `token`."""
        return -(_mixed(digest, token) % 4096) / 1024

    def _top(self, digest: int, count: int) -> TopLogprobs:
        tokens = [(digest + i) % self.geometry.vocab_size for i in range(count)]
        return sorted(((t, self._score(digest, t)) for t in tokens), key=lambda pair: -pair[1])

    def _score_prompts(self, batch: ForwardBatch, digests: list[Words]) -> list[PromptLogprobs]:
        scored = []
        for b, targets, count in zip(
            batch.prompt_logprobs, batch.prompt_targets, batch.prompt_num_logprobs, strict=True
        ):
            before = digests[b][batch.prefix_lens[b] :][: len(targets)].tolist()
            pairs = list(zip(before, targets, strict=True))
            scores = [self._score(digest, target) for digest, target in pairs]
            top = [self._top(digest, count) for digest, _ in pairs]
            scored.append(PromptLogprobs(logprobs=scores, top=top))
        return scored


def _offsets(lengths: Ints) -> Ints:
    """Where each of several stretches laid end to end begins."""
    return np.cumsum(lengths) - lengths
