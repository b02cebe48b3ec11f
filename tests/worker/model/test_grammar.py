"""Whatever is drawn under a grammar's masks fits the grammar."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from pd_worker.core.sampling_params import Grammar
from pd_worker.errors import InvalidRequest
from pd_worker.model.grammar import GrammarCompiler
from pd_worker.model.runner_fake import fake_geometry
from pd_worker.model.sampler import draw
from tests.worker.model.driver import Job, sampling_batch
from tests.worker.model.tiny_tokenizer import EOS, byte_tokenizer, save

VOCAB = 300
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
LARK = 'start: "yes" | "no" ("!" | "?")'


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    folder = save(tmp_path_factory.mktemp("tokenizer"))
    return GrammarCompiler(folder, fake_geometry(vocab_size=VOCAB, eos_ids=(EOS,)))


def write(compiler: GrammarCompiler, grammar: Grammar, seed: int) -> str:
    """Draw random tokens under the grammar until it is complete."""
    matcher, tokens = compiler.compile(grammar), []
    noise = torch.Generator().manual_seed(seed)
    while not matcher.terminated:
        assert len(tokens) < 500
        mask = np.full((1, -(-VOCAB // 32)), -1, np.int32)
        matcher.fill_mask(mask[0])
        job = Job(row=0, prompt=[], output=tokens, options={"temperature": 1.0, "seed": seed})
        sampling = replace(sampling_batch([job], VOCAB), mask=mask)
        tokens.append(int(draw(torch.randn(1, VOCAB, generator=noise), sampling)[0]))
        assert matcher.accept(tokens[-1])
    return byte_tokenizer().decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("seed", range(4))
def test_a_json_schema_is_followed(compiler: GrammarCompiler, seed: int) -> None:
    answer = json.loads(write(compiler, Grammar("json_schema", json.dumps(SCHEMA)), seed))
    assert list(answer) == ["name", "age", "tags"]
    assert 0 <= answer["age"] <= 99
    assert set(answer["tags"]) <= {"a", "b"}
    assert len(answer["name"]) <= 5


@pytest.mark.parametrize("seed", range(4))
def test_a_regex_is_followed(compiler: GrammarCompiler, seed: int) -> None:
    pattern = r"(cat|dog)s? [0-9]{2,4}"
    assert re.fullmatch(pattern, write(compiler, Grammar("regex", pattern), seed))


@pytest.mark.parametrize("seed", range(4))
def test_a_lark_grammar_is_followed(compiler: GrammarCompiler, seed: int) -> None:
    assert write(compiler, Grammar("lark", LARK), seed) in {"yes", "no!", "no?"}


def test_a_json_object_begins_with_a_brace(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(Grammar("json_object"))
    ids = byte_tokenizer()("[{", add_special_tokens=False)["input_ids"]
    assert not compiler.compile(Grammar("json_object")).accept(ids[0])
    assert matcher.accept(ids[1])


def test_requests_with_equal_grammars_do_not_share_their_state(compiler: GrammarCompiler) -> None:
    yes = byte_tokenizer()("yes", add_special_tokens=False)["input_ids"]
    first, second = (compiler.compile(Grammar("lark", LARK)) for _ in range(2))
    assert all(first.accept(token) for token in yes)
    assert first.terminated
    assert not second.terminated
    assert second.accept(yes[0])


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", '{"type":'),
        Grammar("json_schema", '{"type": "no such type"}'),
        Grammar("regex", "[a-"),
        Grammar("lark", "start: missing"),
    ],
    ids=["no json", "no schema", "regex", "lark"],
)
def test_a_broken_grammar_is_the_requests_fault(
    compiler: GrammarCompiler, grammar: Grammar
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(grammar)
    assert caught.value.param == "response_format"
    assert caught.value.status == 400
