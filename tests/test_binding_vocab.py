"""Text to tokens and back: every kind of vocabulary, odd text, ids out of range."""

from __future__ import annotations

import random

import gguf
import numpy as np
import pytest
import tiny_models
from tiny_models import BOS, EOS, FIRST_BYTE, FIRST_PIECE, WORDS, Writer

from pyspec._llama import Model, Vocab
from pyspec.errors import InvalidRequest, UnsupportedModel


@pytest.fixture(scope="module")
def spm(tiny):
    with Model(tiny("llama-spm")) as model:
        yield model.vocab


@pytest.fixture(scope="module")
def bpe(smollm2):
    with Model(smollm2, vocab_only=True) as model:
        yield model.vocab


def write_bpe(path, pieces, *, bos=None, add_bos=None, controls=()):
    """A byte-level BPE vocabulary without weights."""
    w = Writer(path, "llama", 0)
    w.sizes(1)
    tokens = [*(chr(i) for i in range(33, 127)), "Ġ", "Ċ", *pieces, *controls]
    w.file.add_tokenizer_model("gpt2")
    w.file.add_tokenizer_pre("gpt-2")
    w.file.add_token_list(tokens)
    w.file.add_token_types([1] * (len(tokens) - len(controls)) + [3] * len(controls))
    w.file.add_token_merges(["a b"])
    if bos is not None:
        w.file.add_bos_token_id(bos)
    if add_bos is not None:
        w.file.add_add_bos_token(add_bos)
    w.close()


def write_wpm(path):
    w = Writer(path, "bert", 0)
    w.sizes(1)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁hello", "▁world", "lo"]
    w.file.add_tokenizer_model("bert")
    w.file.add_token_list(tokens)
    w.file.add_token_types([3, 2, 3, 3, 3, 1, 1, 1])
    w.file.add_token_scores([0.0] * len(tokens))
    w.file.add_bos_token_id(2)
    w.file.add_sep_token_id(3)
    w.file.add_pad_token_id(0)
    w.file.add_unk_token_id(1)
    w.file.add_mask_token_id(4)
    w.close()


def test_spm(spm):
    assert (spm.type, spm.n_tokens, len(spm)) == ("spm", FIRST_PIECE + len(WORDS) + 2, spm.n_tokens)
    tokens = spm.tokenize("hello world")
    assert tokens[0] == BOS
    assert "".join(spm.text(token) for token in tokens[1:]) == "▁hello▁world"
    assert spm.detokenize(tokens) == b" hello world"
    assert spm.detokenize(tokens[1:]) == b"hello world"
    assert spm.detokenize(tokens, remove_special=True) == b" hello world"
    assert spm.detokenize(tokens, unparse_special=True) == b"<s> hello world"
    assert spm.tokenize("hello world", add_special=False) == tokens[1:]


def test_special_tokens(spm):
    im_end = spm.n_tokens - 1
    assert (spm.bos, spm.eos, spm.eot) == (BOS, EOS, im_end)
    assert spm.eog_tokens == (EOS, im_end)
    assert [token for token in range(spm.n_tokens) if spm.is_eog(token)] == [EOS, im_end]
    assert (spm.sep, spm.pad, spm.mask) == (None, None, None)
    assert (spm.fim_pre, spm.fim_suf, spm.fim_mid, spm.fim_pad, spm.fim_rep, spm.fim_sep) == (None,) * 6
    assert (spm.add_bos, spm.add_eos, spm.add_sep) == (True, False, False)
    assert spm.nl == FIRST_BYTE + 10
    assert spm.suppress_tokens == ()


def test_control_tokens_are_parsed_on_request_only(spm):
    im_end = spm.n_tokens - 1
    assert spm.tokenize("<|im_end|>", parse_special=True)[-1] == im_end
    assert im_end not in spm.tokenize("<|im_end|>")
    assert spm.is_control(im_end)
    assert not spm.is_control(FIRST_PIECE + 3)
    assert spm.piece(im_end) == b"<|im_end|>"
    assert spm.piece(im_end, special=False) == b""
    assert spm.attr(im_end) & 8
    assert spm.attr(FIRST_BYTE) & 32


def test_pieces_are_bytes(spm):
    assert spm.piece(FIRST_BYTE + 0xC3) == b"\xc3"
    assert spm.piece(FIRST_BYTE) == b"\0"
    hello = FIRST_PIECE + WORDS.index("▁hello")
    assert (spm.piece(hello), spm.piece(hello, lstrip=1)) == (b" hello", b"hello")
    assert spm.score(hello) == -float(hello)


def test_text_outside_the_vocabulary_becomes_bytes(spm):
    tokens = spm.tokenize("🦙", add_special=False)
    assert [token - FIRST_BYTE for token in tokens[1:]] == list("🦙".encode())
    assert spm.detokenize(tokens).endswith("🦙".encode())


def test_long_pieces(tmp_path):
    """Pieces longer than any first guess of a buffer."""
    path = tmp_path / "long.gguf"
    long = "x" * 5000
    tiny_models.write_successor(path, {"pieces": ["▁a", long]}, {})
    with Model(path) as model:
        vocab = model.vocab
        assert vocab.piece(FIRST_PIECE + 1) == long.encode()
        assert vocab.text(FIRST_PIECE + 1) == long
        assert vocab.detokenize([FIRST_PIECE + 1] * 3) == long.encode() * 3


@pytest.mark.parametrize("call", ["piece", "text", "score", "attr", "is_eog", "is_control"])
@pytest.mark.parametrize("token", [-1, -(1 << 40), 1 << 31, 1 << 80, None, "a", 1.0])
def test_ids_out_of_range(spm, call, token):
    with pytest.raises(InvalidRequest) as caught:
        getattr(spm, call)(token)
    if isinstance(token, int):
        assert str(token) in str(caught.value)
        assert str(spm.n_tokens - 1) in str(caught.value)


def test_the_first_id_out_of_range(spm):
    with pytest.raises(InvalidRequest, match=f"token id {spm.n_tokens} "):
        spm.piece(spm.n_tokens)
    with pytest.raises(InvalidRequest, match=f"token id {spm.n_tokens} in tokens"):
        spm.detokenize([1, spm.n_tokens])


def test_token_lists_of_every_kind(spm):
    expected = spm.detokenize([300, 301, 302])
    ids = [300, 301, 302]
    for tokens in (ids, tuple(ids), iter(ids), range(300, 303), np.array(ids), np.array(ids, np.uint16)):
        assert spm.detokenize(tokens) == expected
    assert spm.detokenize([]) == b""


@pytest.mark.parametrize(
    "tokens", [None, 3, "ab", [None], [1.5], [[1]], np.array([-1]), np.array([1 << 40]), np.array([1.5])]
)
def test_what_is_no_token_list(spm, tokens):
    with pytest.raises(InvalidRequest):
        spm.detokenize(tokens)


@pytest.mark.parametrize("text", [None, 3, ["a"], bytearray(b"a")])
def test_what_is_no_text(spm, text):
    with pytest.raises(InvalidRequest, match="str or bytes"):
        spm.tokenize(text)


ODD_TEXTS = [
    b"", b"\0", b"a\0b", b"\xff", b"\xc3", b"\xe4\xbd", b"\xf0\x9f\x99", b"\x80\x80", b"\xed\xa0\x80",
    b"\xf8\x88\x80\x80\x80", b"\xc0\x80", b"ok \xff\xfe ok", "\ud800", "a\udc80b", "e\u0301", "\u200b\ufeff",
    " " * 3000, "\n\n\t \r", "\U0010ffff", "<s></s><|im_end|>",
]  # fmt: skip


@pytest.mark.parametrize("text", ODD_TEXTS, ids=repr)
def test_odd_text(spm, bpe, text):
    """Nothing that is no UTF-8 ends the process, and what is comes back."""
    for vocab in (spm, bpe):
        tokens = vocab.tokenize(text, add_special=False)
        back = vocab.detokenize(tokens, unparse_special=True)
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        try:
            data.decode()
        except UnicodeDecodeError:
            continue
        assert back.removeprefix(b" ") == data.removeprefix(b" ")


def test_random_bytes(spm, bpe):
    source = random.Random(1)
    for _ in range(300):
        data = source.randbytes(source.randrange(40))
        for vocab in (spm, bpe):
            vocab.detokenize(vocab.tokenize(data, parse_special=True))


def test_long_text(bpe):
    text = "The quick brown fox. " * 20_000
    tokens = bpe.tokenize(text)
    assert bpe.detokenize(tokens).decode() == text


def test_wpm(tmp_path):
    path = tmp_path / "wpm.gguf"
    write_wpm(path)
    with Model(path, vocab_only=True) as model:
        vocab = model.vocab
        assert vocab.type == "wpm"
        assert vocab.tokenize("Hello world") == [2, 5, 6, 3]
        assert (vocab.mask, vocab.pad, vocab.sep, vocab.bos) == (4, 0, 3, 2)
        for text in ODD_TEXTS:
            vocab.tokenize(text)


def test_bpe_with_a_special_token_it_does_not_have(tmp_path):
    """llama.cpp asserts that a BOS it is told to add exists."""
    path = tmp_path / "bpe.gguf"
    write_bpe(path, ["ab"], add_bos=True)
    with Model(path, vocab_only=True, kv_overrides={"tokenizer.ggml.bos_token_id": -1}) as model:
        vocab = model.vocab
        if vocab.bos is None and vocab.add_bos:
            with pytest.raises(UnsupportedModel, match="BOS"):
                vocab.tokenize("ab")
        assert vocab.detokenize(vocab.tokenize("ab", add_special=False)) == b"ab"


def test_no_vocabulary(tmp_path):
    path = tmp_path / "none.gguf"
    w = Writer(path, "llama", 0)
    w.sizes(1)
    w.file.add_tokenizer_model("no_vocab")
    w.u32(vocab_size=32)
    w.close()
    with Model(path, vocab_only=True) as model:
        vocab = model.vocab
        assert (vocab.type, vocab.n_tokens) == ("none", 32)
        for use in (lambda: vocab.tokenize("a"), lambda: vocab.detokenize([1]), lambda: vocab.piece(1),
                    lambda: vocab.text(1), lambda: vocab.score(1), lambda: vocab.attr(1),
                    lambda: vocab.is_control(1)):  # fmt: skip
            with pytest.raises(UnsupportedModel, match="no vocabulary"):
                use()
        assert vocab.eog_tokens == ()


def test_suppressed_tokens(tmp_path):
    path = tmp_path / "suppress.gguf"
    w = Writer(path, "llama", 0)
    w.sizes(1)
    w.spm_vocab(WORDS)
    w.file.add_key_value("tokenizer.ggml.suppress_tokens", [5, 6], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32)
    w.close()
    with Model(path, vocab_only=True) as model:
        assert model.vocab.suppress_tokens == (5, 6)


def test_vocab_is_not_made_by_hand():
    with pytest.raises(TypeError, match=r"Model\.vocab"):
        Vocab()
