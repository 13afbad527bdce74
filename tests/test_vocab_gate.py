"""The vocabulary gate: which pairs may speculate, and what is said about the others."""

from __future__ import annotations

import time

import pytest
from vocab_files import BYTE, CONTROL, NORMAL, UNUSED, spm_tokens, write_vocab

from pyspec._llama import Model
from pyspec.errors import VocabMismatch
from pyspec.speculation.vocab_gate import check_vocabulary

N = 400


@pytest.fixture
def vocab(tmp_path):
    """Makes vocabularies; the keywords are write_vocab's, and the models stay open for the test."""
    models = []

    def make(tokens=None, **kwargs):
        path = write_vocab(tmp_path / f"{len(models)}.gguf", tokens or spm_tokens(N), **kwargs)
        models.append(Model(str(path), vocab_only=True))
        return models[-1].vocab

    yield make
    for model in models:
        model.close()


def changed(token, text, kind=NORMAL, n=N):
    tokens = spm_tokens(n)
    tokens[token] = (text, kind)
    return tokens


def mismatch(target, draft) -> VocabMismatch:
    with pytest.raises(VocabMismatch) as caught:
        check_vocabulary(target, draft)
    return caught.value


def test_the_same_vocabulary_is_accepted(vocab):
    target = vocab()
    check_vocabulary(target, vocab())
    check_vocabulary(target, target)


def test_type(vocab):
    error = mismatch(vocab(), vocab(model="gpt2"))
    assert (error.property, error.target, error.draft) == ("type", "spm", "bpe")
    assert "'spm'" in str(error)
    assert "'bpe'" in str(error)


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_added_bos_and_eos(vocab, name):
    with_it, without = vocab(**{f"add_{name}": True}), vocab(**{f"add_{name}": False})
    error = mismatch(with_it, without)
    assert (error.property, error.target, error.draft) == (f"add_{name}", True, False)
    error = mismatch(without, with_it)
    assert (error.target, error.draft) == (False, True)


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_bos_and_eos_ids_count_if_they_are_added(vocab, name):
    added = {f"add_{name}": True}
    error = mismatch(vocab(**added, **{name: 1}), vocab(**added, **{name: 2}))
    assert (error.property, error.target, error.draft) == (f"{name} token", 1, 2)
    added = {f"add_{name}": False}
    check_vocabulary(vocab(**added, **{name: 1}), vocab(**added, **{name: 2}))


@pytest.mark.parametrize("larger", ["target", "draft"])
def test_padding_is_accepted_up_to_128_tokens(vocab, larger):
    sizes = (N + 128, N) if larger == "target" else (N, N + 128)
    check_vocabulary(*(vocab(spm_tokens(n)) for n in sizes))
    sizes = (N + 129, N) if larger == "target" else (N, N + 129)
    error = mismatch(*(vocab(spm_tokens(n)) for n in sizes))
    assert (error.property, error.target, error.draft) == ("size", *sizes)
    assert str(N) in str(error)
    assert str(N + 129) in str(error)


@pytest.mark.parametrize("token", [5, 6, 260, 300, N - 1])
def test_every_text_counts(vocab, token):
    error = mismatch(vocab(), vocab(changed(token, "other")))
    assert (error.property, error.draft, error.token_id) == ("token text", "other", token)
    assert error.target == vocab().text(token)
    assert f"token {token}" in str(error)
    assert "'other'" in str(error)


def test_the_first_text_that_differs_is_named(vocab):
    tokens = changed(300, "a")
    tokens[310] = ("b", NORMAL)
    assert mismatch(vocab(), vocab(tokens)).token_id == 300


@pytest.mark.parametrize("token", range(5))
@pytest.mark.parametrize("kind", [CONTROL, UNUSED])
def test_special_tokens_below_5_may_have_other_names(vocab, token, kind):
    check_vocabulary(vocab(), vocab(changed(token, "<|endoftext|>", kind)))


@pytest.mark.parametrize("token", range(5))
def test_tokens_below_5_that_are_text_count(vocab, token):
    with_text = changed(token, "word")
    with_byte = spm_tokens(N)
    with_byte[token], with_byte[5] = with_byte[5], with_byte[token]
    assert with_byte[token] == ("<0x00>", BYTE)
    for tokens in (with_text, with_byte):
        assert mismatch(vocab(), vocab(tokens)).token_id == token
        assert mismatch(vocab(tokens), vocab()).token_id == token


def test_other_properties_are_free(vocab):
    check_vocabulary(vocab(eos=2), vocab(eos=4, chat_template="{{ messages }}", suppress=[7]))


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_a_model_and_its_quantized_form(request, model):
    with Model(str(request.getfixturevalue(model)), vocab_only=True) as target:
        check_vocabulary(target.vocab, target.vocab)


def test_two_families(smollm2, gemma3):
    with Model(str(smollm2), vocab_only=True) as target, Model(str(gemma3), vocab_only=True) as draft:
        error = mismatch(target.vocab, draft.vocab)
        assert error.property == "type"


def test_it_is_fast_for_a_large_vocabulary(gemma3):
    with Model(str(gemma3), vocab_only=True) as target, Model(str(gemma3), vocab_only=True) as draft:
        assert target.vocab.n_tokens == 262_144
        seconds = []
        for _ in range(3):
            start = time.process_time()
            check_vocabulary(target.vocab, draft.vocab)
            seconds.append(time.process_time() - start)
        assert min(seconds) < 0.3
