# The vocabulary: text to tokens and back.

cdef dict VOCAB_TYPES = {
    LLAMA_VOCAB_TYPE_NONE: "none",
    LLAMA_VOCAB_TYPE_SPM: "spm",
    LLAMA_VOCAB_TYPE_BPE: "bpe",
    LLAMA_VOCAB_TYPE_WPM: "wpm",
    LLAMA_VOCAB_TYPE_UGM: "ugm",
    LLAMA_VOCAB_TYPE_RWKV: "rwkv",
    LLAMA_VOCAB_TYPE_PLAMO2: "plamo2",
    LLAMA_VOCAB_TYPE_TEST: "test",
}
# Texts and token lists beyond this would overflow the 32-bit counts libllama returns.
cdef int64_t MAX_TEXT = 1 << 29


cdef object token_or_none(llama_token token):
    return None if token == LLAMA_TOKEN_NULL else token


cdef class Vocab:
    """A model's vocabulary, from ``Model.vocab``. Safe to use from several threads.

    Token ids are ints in ``range(vocab.n_tokens)``; others raise InvalidRequest.
    """

    def __init__(self):
        raise TypeError("a Vocab comes from Model.vocab")

    def __len__(self):
        return self.n_tokens

    def __repr__(self):
        return f"<pyspec Vocab: {self.type}, {self.n_tokens} tokens>"

    cdef llama_token check(self, object token) except? -1:
        try:
            number = operator.index(token)
        except TypeError:
            raise InvalidRequest(
                f"a token id must be an integer, not {token!r}", name="token", value=token
            ) from None
        if number < 0 or number >= self.n_tokens:
            raise InvalidRequest(
                f"token id {number} is not in the vocabulary, which has the ids 0 to {self.n_tokens - 1}",
                name="token", value=token,
            )
        return number

    cdef int require(self) except -1:
        if llama_vocab_type(self.handle.vocab) == LLAMA_VOCAB_TYPE_NONE:
            raise UnsupportedModel("the model has no vocabulary")
        return 0

    @property
    def type(self) -> str:
        """``"spm"``, ``"bpe"``, ``"wpm"``, ``"ugm"``, ``"rwkv"``, ``"plamo2"``, ``"test"`` or ``"none"``."""
        return VOCAB_TYPES.get(<int> llama_vocab_type(self.handle.vocab), "unknown")

    def tokenize(self, text, *, add_special=True, parse_special=False) -> list[int]:
        """Split text into tokens.

        Args:
            text: str, or bytes meant to be UTF-8. Bytes that are not become replacement characters or byte
                tokens, as the vocabulary has it.
            add_special: put BOS and EOS around the text if the model wants that.
            parse_special: read texts of control tokens, like ``<|im_start|>``, as those tokens. With text from a
                user, leave it off.
        """
        if isinstance(text, str):
            text = text.encode("utf-8", "surrogatepass")
        elif not isinstance(text, bytes):
            raise InvalidRequest(
                f"text must be str or bytes, not {type(text).__name__}", name="text", value=text
            )
        if len(text) > MAX_TEXT:
            raise InvalidRequest(f"text of {len(text)} bytes is too long; the limit is {MAX_TEXT}", name="text")
        self.require()
        if add_special:
            self.check_special()
        try:
            return self.split(text, bool(add_special), bool(parse_special))
        except InvalidRequest:
            # Some of libllama's tokenizers refuse what is no UTF-8, others replace it.
            replaced = text.decode("utf-8", "replace").encode()
            if replaced == text:
                raise
            return self.split(replaced, bool(add_special), bool(parse_special))

    cdef list split(self, bytes text, cpp_bool add_special, cpp_bool parse_special):
        cdef vector[llama_token] tokens
        cdef const llama_vocab * vocab = self.handle.vocab
        cdef const char * c_text = text
        cdef int32_t length = len(text)
        cdef int32_t n
        begin_call()
        try:
            with nogil:
                tokens.resize(length + 2)
                n = llama_tokenize(
                    vocab, c_text, length, tokens.data(), tokens.size(), add_special, parse_special)
                if n < 0 and n != -2147483648:
                    tokens.resize(-n)
                    n = llama_tokenize(
                        vocab, c_text, length, tokens.data(), tokens.size(), add_special, parse_special)
        except Exception as error:
            raise InvalidRequest(f"the vocabulary cannot tokenize the text: {error}", name="text") from error
        if n < 0:
            raise InvalidRequest("the text makes more tokens than can be counted", name="text")
        tokens.resize(n)
        drain_log()
        return tokens

    cdef int check_special(self) except -1:
        """Refuse special tokens the vocabulary asks for but does not have; libllama asserts that it has
        them.
        """
        cdef const llama_vocab * vocab = self.handle.vocab
        cdef int kind = llama_vocab_type(vocab)
        missing = None
        if kind in (LLAMA_VOCAB_TYPE_SPM, LLAMA_VOCAB_TYPE_BPE, LLAMA_VOCAB_TYPE_UGM):
            if llama_vocab_get_add_bos(vocab) and llama_vocab_bos(vocab) == LLAMA_TOKEN_NULL:
                missing = "BOS"
            elif llama_vocab_get_add_eos(vocab) and llama_vocab_eos(vocab) == LLAMA_TOKEN_NULL:
                missing = "EOS"
        elif kind == LLAMA_VOCAB_TYPE_WPM:
            if llama_vocab_bos(vocab) == LLAMA_TOKEN_NULL:
                missing = "CLS"
            elif llama_vocab_sep(vocab) == LLAMA_TOKEN_NULL:
                missing = "SEP"
        if missing is not None:
            raise UnsupportedModel(
                f"the vocabulary wants a {missing} token added but has none; use add_special=False"
            )
        return 0

    def detokenize(self, tokens, *, remove_special=False, unparse_special=False) -> bytes:
        """Join tokens into text, as bytes; a list of tokens may end inside a character.

        Args:
            tokens: token ids.
            remove_special: leave out BOS and EOS if the model adds them.
            unparse_special: write control tokens as their texts instead of nothing.
        """
        cdef vector[llama_token] ids
        cdef string text
        cdef int32_t n
        cdef cpp_bool remove = bool(remove_special), unparse = bool(unparse_special)
        cdef const llama_vocab * vocab = self.handle.vocab
        as_tokens("tokens", tokens, self.n_tokens, ids)
        if ids.empty():
            return b""
        if ids.size() > <size_t> MAX_TEXT // 8:
            raise InvalidRequest(f"{ids.size()} tokens are too many for one call", name="tokens")
        self.require()
        try:
            with nogil:
                text.resize(8 * ids.size() + 32)
                n = llama_detokenize(vocab, ids.data(), ids.size(), &text[0], text.size(), remove, unparse)
                if n < 0:
                    text.resize(-n)
                    n = llama_detokenize(vocab, ids.data(), ids.size(), &text[0], text.size(), remove,
                                         unparse)
        except Exception as error:
            raise InvalidRequest(
                f"the vocabulary cannot write these tokens: {error}", name="tokens"
            ) from error
        text.resize(max(n, 0))
        return text

    def piece(self, token, *, special=True, lstrip=0) -> bytes:
        """The bytes one token stands for; often a part of a character.

        Args:
            token: the token id.
            special: write control tokens as their texts; False writes nothing for them.
            lstrip: leave out up to so many leading spaces.
        """
        cdef llama_token id = self.check(token)
        cdef int32_t strip = as_int("lstrip", lstrip, 0, 1 << 30)
        cdef string text
        cdef int32_t n
        self.require()
        text.resize(64)
        n = llama_token_to_piece(self.handle.vocab, id, &text[0], text.size(), strip, bool(special))
        if n < 0:
            text.resize(-n)
            n = llama_token_to_piece(self.handle.vocab, id, &text[0], text.size(), strip, bool(special))
        text.resize(max(n, 0))
        return text

    def text(self, token) -> str:
        """The token as the vocabulary spells it (``"▁the"``), not as it appears in text."""
        cdef llama_token id = self.check(token)
        self.require()
        return llama_vocab_get_text(self.handle.vocab, id).decode("utf-8", "replace")

    def score(self, token) -> float:
        """The token's score, where the vocabulary has scores."""
        cdef llama_token id = self.check(token)
        self.require()
        return llama_vocab_get_score(self.handle.vocab, id)

    def attr(self, token) -> int:
        """The token's attributes, llama.cpp's ``LLAMA_TOKEN_ATTR_*`` bits: unknown 1, unused 2, normal 4,
        control 8, user-defined 16, byte 32, normalized 64, lstrip 128, rstrip 256, single word 512.
        """
        cdef llama_token id = self.check(token)
        self.require()
        return <int> llama_vocab_get_attr(self.handle.vocab, id)

    def is_eog(self, token) -> bool:
        """Whether generation ends with this token."""
        return llama_vocab_is_eog(self.handle.vocab, self.check(token))

    def is_control(self, token) -> bool:
        """Whether the token marks structure and has no text of its own."""
        cdef llama_token id = self.check(token)
        self.require()
        return llama_vocab_is_control(self.handle.vocab, id)

    @property
    def eog_tokens(self) -> tuple[int, ...]:
        """All tokens that end generation, ascending."""
        cdef const llama_vocab * vocab = self.handle.vocab
        return tuple([i for i in range(self.n_tokens) if llama_vocab_is_eog(vocab, i)])

    @property
    def suppress_tokens(self) -> tuple[int, ...]:
        """Tokens the model's authors say should never be generated."""
        cdef int32_t n = 0
        cdef const llama_token * ids = llama_vocab_get_suppress_tokens(self.handle.vocab, &n)
        return tuple([ids[i] for i in range(n)]) if ids != NULL else ()

    @property
    def bos(self) -> int | None:
        """Beginning of sequence."""
        return token_or_none(llama_vocab_bos(self.handle.vocab))

    @property
    def eos(self) -> int | None:
        """End of sequence."""
        return token_or_none(llama_vocab_eos(self.handle.vocab))

    @property
    def eot(self) -> int | None:
        """End of turn."""
        return token_or_none(llama_vocab_eot(self.handle.vocab))

    @property
    def sep(self) -> int | None:
        """Sentence separator."""
        return token_or_none(llama_vocab_sep(self.handle.vocab))

    @property
    def nl(self) -> int | None:
        """Newline."""
        return token_or_none(llama_vocab_nl(self.handle.vocab))

    @property
    def pad(self) -> int | None:
        """Padding."""
        return token_or_none(llama_vocab_pad(self.handle.vocab))

    @property
    def mask(self) -> int | None:
        """Mask."""
        return token_or_none(llama_vocab_mask(self.handle.vocab))

    @property
    def fim_pre(self) -> int | None:
        """Fill-in-the-middle: what follows is the text before the gap."""
        return token_or_none(llama_vocab_fim_pre(self.handle.vocab))

    @property
    def fim_suf(self) -> int | None:
        """Fill-in-the-middle: what follows is the text after the gap."""
        return token_or_none(llama_vocab_fim_suf(self.handle.vocab))

    @property
    def fim_mid(self) -> int | None:
        """Fill-in-the-middle: what follows fills the gap."""
        return token_or_none(llama_vocab_fim_mid(self.handle.vocab))

    @property
    def fim_pad(self) -> int | None:
        """Fill-in-the-middle: padding."""
        return token_or_none(llama_vocab_fim_pad(self.handle.vocab))

    @property
    def fim_rep(self) -> int | None:
        """Fill-in-the-middle: repository name."""
        return token_or_none(llama_vocab_fim_rep(self.handle.vocab))

    @property
    def fim_sep(self) -> int | None:
        """Fill-in-the-middle: file separator."""
        return token_or_none(llama_vocab_fim_sep(self.handle.vocab))

    @property
    def add_bos(self) -> bool:
        """Whether the model wants BOS before a text."""
        return llama_vocab_get_add_bos(self.handle.vocab)

    @property
    def add_eos(self) -> bool:
        """Whether the model wants EOS after a text."""
        return llama_vocab_get_add_eos(self.handle.vocab)

    @property
    def add_sep(self) -> bool:
        """Whether the model wants SEP between texts."""
        return llama_vocab_get_add_sep(self.handle.vocab)
