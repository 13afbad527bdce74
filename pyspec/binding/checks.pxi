# Checks of arguments. Each names the parameter, the value and what would do.


cdef int64_t as_int(str name, object value, int64_t low, int64_t high) except? -4611686018427387904:
    """`value` as an integer in [low, high]."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidRequest(f"{name} must be an integer, not {value!r}", name=name, value=value) from None
    if number < low or number > high:
        raise InvalidRequest(f"{name} must be between {low} and {high}, not {number}", name=name, value=value)
    return number


cdef double as_float(str name, object value, double low, double high) except? -1.5e300:
    """`value` as a number in [low, high]; NaN is never one."""
    cdef double number
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(f"{name} must be a number, not {value!r}", name=name, value=value) from None
    if not low <= number <= high:
        if low == -math.inf or high == math.inf:
            bounds = f"at least {low:g}" if high == math.inf else f"at most {high:g}"
            if low == -high:
                bounds = "a number"
        else:
            bounds = f"between {low:g} and {high:g}"
        raise InvalidRequest(f"{name} must be {bounds}, not {value!r}", name=name, value=value)
    return number


cdef double as_finite(str name, object value, double low=-math.inf, double high=math.inf) except? -1.5e300:
    """`value` as a number that is finite as a C float, in [low, high]."""
    cdef double number = as_float(name, value, low, high)
    if not math.isfinite(<float> number):
        raise InvalidRequest(f"{name} must be finite, not {value!r}", name=name, value=value)
    return number


cdef int as_choice(str name, object value, dict choices) except? -1073741824:
    """The C value that `value` names."""
    if isinstance(value, str):
        number = choices.get(value)
        if number is not None:
            return number
    names = ", ".join(map(repr, choices))
    raise InvalidRequest(f"{name} must be one of {names}, not {value!r}", name=name, value=value)


cdef bytes as_c_string(str name, object value):
    """`value` as UTF-8 without NUL bytes."""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    elif not isinstance(value, bytes):
        raise InvalidRequest(f"{name} must be a str, not {value!r}", name=name, value=value)
    if b"\0" in value:
        raise InvalidRequest(f"{name} must not contain a NUL character", name=name, value=value)
    return value


cdef bytes as_path(str name, object value):
    """`value`, a str, bytes or os.PathLike, as the bytes of a file name."""
    try:
        path = os.fsencode(value)
    except (TypeError, ValueError):
        raise InvalidRequest(f"{name} must be a path, not {value!r}", name=name, value=value) from None
    if not path or b"\0" in path:
        raise InvalidRequest(f"{name} must be a path, not {value!r}", name=name, value=value)
    return path


cdef int as_tokens(str name, object value, int32_t n_vocab, vector[llama_token] & out) except -1:
    """The token ids of `value`, any iterable of integers, each in [0, n_vocab)."""
    cdef int64_t token
    cdef const int32_t[::1] view
    cdef Py_ssize_t i
    out.clear()
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim == 1:
        if value.size and not (0 <= value.min() and value.max() < n_vocab):
            value = value.tolist()  # the slow way names the culprit
        else:
            view = np.ascontiguousarray(value, np.int32)
            out.resize(view.shape[0])
            for i in range(view.shape[0]):
                out[i] = view[i]
            return 0
    try:
        iterator = iter(value)
    except TypeError:
        raise InvalidRequest(
            f"{name} must be a sequence of token ids, not {value!r}", name=name, value=value
        ) from None
    for item in iterator:
        try:
            token = operator.index(item)
        except (TypeError, OverflowError):
            raise InvalidRequest(f"{name} must hold token ids, not {item!r}", name=name, value=item) from None
        if token < 0 or token >= n_vocab:
            raise InvalidRequest(
                f"token id {token} in {name} is not in the vocabulary, which has the ids 0 to {n_vocab - 1}",
                name=name, value=token,
            )
        out.push_back(<llama_token> token)
    return 0
