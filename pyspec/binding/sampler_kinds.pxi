# Making samplers: checks that libllama leaves out, and the ones whose arguments need translating.

# ggml's parser of grammars and the check for left recursion call themselves; beyond this they run out of
# stack (these are for the 1 MB that a small thread has).
cdef int MAX_GRAMMAR_DEPTH = 256
cdef int MAX_GRAMMAR_RULES = 8000
# The window of penalties and DRY is allocated at once.
cdef int64_t MAX_WINDOW = 1 << 24

_grammar_lock = threading.Lock()


cdef Sampler new_sampler(
    llama_sampler * ptr, str kind, ModelHandle handle=None, int32_t n_vocab=0, int32_t k=0
):
    cdef Sampler sampler = Sampler.__new__(Sampler)
    take(sampler, ptr, kind, handle, n_vocab, k)
    return sampler


cdef uint32_t as_seed(object seed) except? 0:
    """A seed; libllama takes the largest 32-bit number for a random one."""
    return as_int("seed", seed, 0, 0xFFFFFFFF)


cdef size_t as_keep(object min_keep) except? 0:
    return as_int("min_keep", min_keep, 0, 1 << 30)


cdef int32_t as_window(str name, object value) except? -1:
    return as_int(name, value, 0, MAX_WINDOW)


cdef double as_positive(str name, object value) except? -1:
    cdef double number = as_finite(name, value, 0.0)
    if <float> number == 0:
        raise InvalidRequest(f"{name} must be greater than 0, not {value!r}", name=name, value=value)
    return number


cdef Sampler make_dry(
    Vocab vocab, object multiplier, object base, object allowed_length, object last_n, object breakers
):
    cdef vector[const char *] texts
    cdef llama_sampler * ptr
    if isinstance(breakers, (str, bytes)):
        raise InvalidRequest(
            f"breakers must be a list of strings, not {breakers!r}", name="breakers", value=breakers
        )
    keep = [as_c_string("a string in breakers", text) for text in breakers]
    for encoded in keep:
        if not encoded:
            raise InvalidRequest("a string in breakers is empty", name="breakers", value=breakers)
        texts.push_back(encoded)
    if keep:
        vocab.require()
    begin_call()
    try:
        ptr = llama_sampler_init_dry(
            vocab.handle.vocab, as_finite("multiplier", multiplier, 0.0), as_finite("base", base, 0.0),
            as_int("allowed_length", allowed_length, 0, MAX_WINDOW), as_window("last_n", last_n),
            texts.data(), texts.size())
    except InvalidRequest:
        raise
    except Exception as error:
        raise InvalidRequest(f"the vocabulary cannot tokenize breakers: {error}", name="breakers") from error
    drain_log()
    return new_sampler(ptr, "dry", vocab.handle)


cdef Sampler make_logit_bias(Vocab vocab, object bias):
    cdef vector[llama_logit_bias] biases
    cdef llama_logit_bias entry
    try:
        pairs = bias.items() if isinstance(bias, dict) else list(bias)
        for token, value in pairs:
            entry.token = vocab.check(token)
            entry.bias = as_float("a bias", value, -math.inf, 3e38)
            biases.push_back(entry)
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise InvalidRequest(f"bias must be a dict of token ids and numbers, not {bias!r}", name="bias",
                             value=bias) from None
    if biases.size() > <size_t> vocab.n_tokens:
        raise InvalidRequest("bias names tokens twice", name="bias")
    return new_sampler(llama_sampler_init_logit_bias(vocab.n_tokens, biases.size(), biases.data()),
                       "logit_bias", None, vocab.n_tokens)


cdef Sampler make_infill(Vocab vocab):
    cdef const llama_vocab * c_vocab = vocab.handle.vocab
    vocab.require()
    if llama_vocab_eot(c_vocab) == LLAMA_TOKEN_NULL and llama_vocab_eos(c_vocab) == LLAMA_TOKEN_NULL:
        raise UnsupportedModel("infill needs a vocabulary with an end-of-turn or end-of-sequence token")
    return new_sampler(llama_sampler_init_infill(c_vocab), "infill", vocab.handle, vocab.n_tokens)


cdef Sampler make_grammar(Vocab vocab, object text, object root, object patterns, object tokens):
    """With `patterns` and `tokens` None an ordinary grammar, otherwise a lazy one."""
    cdef vector[const char *] c_patterns
    cdef vector[llama_token] c_tokens
    cdef llama_sampler * ptr
    cdef const char * c_text
    cdef const char * c_root
    encoded = as_c_string("text", text)
    encoded_root = as_c_string("root", root)
    vocab.require()
    check_grammar(encoded)
    c_text, c_root = encoded, encoded_root
    keep = []
    if patterns is not None:
        for pattern in patterns:
            keep.append(as_c_string("a string in trigger_patterns", pattern))
            c_patterns.push_back(keep[-1])
        as_tokens("trigger_tokens", tokens, vocab.n_tokens, c_tokens)
        if c_patterns.empty() and c_tokens.empty():
            raise InvalidRequest(
                "a lazy grammar needs trigger_patterns or trigger_tokens", name="trigger_patterns"
            )
    begin_call()
    with ParserMessages() as messages:
        try:
            if patterns is None:
                ptr = llama_sampler_init_grammar(vocab.handle.vocab, c_text, c_root)
            else:
                ptr = llama_sampler_init_grammar_lazy_patterns(
                    vocab.handle.vocab, c_text, c_root, c_patterns.data(), c_patterns.size(), c_tokens.data(),
                    c_tokens.size())
        except Exception as error:  # std::regex refuses a pattern
            raise GrammarError(f"a trigger pattern cannot be used: {error}", name="trigger_patterns",
                               value=patterns) from error
    if ptr == NULL:
        why = messages.first() or reason()
        raise GrammarError(f"the grammar cannot be used: {why}", name="text", value=text)
    drain_log()
    return new_sampler(ptr, "grammar", vocab.handle, vocab.n_tokens)


cdef int check_grammar(bytes text) except -1:
    """What would exhaust libllama's stack, and the empty grammar, which it takes for no grammar."""
    cdef int depth = 0, deepest = 0
    if not text.strip():
        raise GrammarError("the grammar is empty", name="text", value=text)
    for byte in text:
        if byte == c"(":
            depth += 1
            deepest = max(deepest, depth)
        elif byte == c")":
            depth = max(0, depth - 1)
    if deepest > MAX_GRAMMAR_DEPTH:
        raise GrammarError(f"the grammar nests more than {MAX_GRAMMAR_DEPTH} parentheses", name="text")
    if text.count(b"::=") > MAX_GRAMMAR_RULES:
        raise GrammarError(f"the grammar has more than {MAX_GRAMMAR_RULES} rules", name="text")
    return 0


class ParserMessages:
    """Catches what libllama's grammar parser prints to stderr, past its own log.

    For the few microseconds of a parse file descriptor 2 leads to a temporary file; what other threads write
    there in the meantime is passed on.
    """

    def __enter__(self):
        _grammar_lock.acquire()
        self.text = ""
        try:
            self._saved = os.dup(2)
        except OSError:  # the process has no stderr
            self._saved = None
            return self
        self._file = tempfile.TemporaryFile()
        os.dup2(self._file.fileno(), 2)
        return self

    def __exit__(self, *exc_info):
        try:
            if self._saved is not None:
                os.dup2(self._saved, 2)
                os.close(self._saved)
                self._file.seek(0)
                self.text = self._file.read().decode("utf-8", "replace")
                self._file.close()
        finally:
            _grammar_lock.release()

    def first(self):
        """The parser's complaint, with the place shortened to a line."""
        marker = "error parsing grammar: "
        _, found, rest = self.text.partition(marker)
        if not found:
            return ""
        complaint = rest.split("\n\n", 1)[0]
        what, at, place = complaint.partition(" at ")
        if not at:
            return complaint.strip()
        return f"{what} at {place.splitlines()[0][:60]!r}" if place.strip() else f"{what} at the end"
