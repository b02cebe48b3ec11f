"""The tokenizer's own rules, on the small one and on the real model's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pd_worker.api.tokenizer import Tokenizer, load_tokenizer
from pd_worker.errors import InvalidRequest, ModelError


def test_bytes_of_tokens_join_to_the_bytes_of_the_text(tokenizer: Tokenizer) -> None:
    text = "hello wörld 😀\n\t<|im_end|>"
    ids = tokenizer.encode(text)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_part_of_a_character_is_written_as_bytes(tokenizer: Tokenizer) -> None:
    texts = [tokenizer.token_text(token) for token in tokenizer.encode("😀")]
    assert all(text.startswith("bytes:\\x") for text in texts)


def test_an_unknown_id_has_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""


def test_a_template_that_refuses_is_the_clients_fault(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="chat template refuses") as caught:
        tokenizer.render_chat([{"role": "user"}], None, {})
    assert caught.value.param == "messages"


@pytest.mark.parametrize("content", [None, "{", "{}"], ids=["no file", "no json", "empty"])
def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=str(tmp_path)):
        load_tokenizer(tmp_path)


@pytest.mark.model
def test_the_real_model_chats(small_model: Path) -> None:
    tokenizer = load_tokenizer(small_model)
    prompt = tokenizer.render_chat([{"role": "user", "content": "Hi 😀"}], None, {})
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    assert prompt.endswith("<|im_start|>assistant\n")
    assert tokenizer.decode(ids, skip_special_tokens=False) == prompt
    assert b"".join(map(tokenizer.token_bytes, ids)) == prompt.encode()


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "return_dict", "conversation"])
def test_a_client_cannot_bring_a_template_or_another_kind_of_answer(
    tokenizer: Tokenizer, name: str
) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    with pytest.raises(InvalidRequest, match=name) as caught:
        tokenizer.render_chat(messages, None, {name: "{% for i in range(2**40) %}{% endfor %}"})
    assert caught.value.param == "chat_template_kwargs"


def test_variables_of_the_template_can_be_set(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    told = {"enable_thinking": False, "add_generation_prompt": False}
    text = tokenizer.render_chat(messages, None, told)
    assert text != tokenizer.render_chat(messages, None, {})
