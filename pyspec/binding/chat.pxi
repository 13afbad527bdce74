# libllama's built-in chat templates: a fixed list that it recognises, not Jinja.


def chat_builtin_templates() -> list[str]:
    """Names of the templates :func:`apply_chat_template` knows."""
    cdef vector[const char *] names
    cdef int32_t n = llama_chat_builtin_templates(NULL, 0)
    names.resize(n)
    llama_chat_builtin_templates(names.data(), n)
    return [name.decode() for name in names]


def apply_chat_template(template, messages, add_generation_prompt=True) -> str:
    """Write a conversation as the prompt a model was trained on.

    Args:
        template: a name from :func:`chat_builtin_templates`, or a model's Jinja template, which is recognised
        if
            it is one of those; None means ChatML.
        messages: pairs of role and content, or dicts with these keys.
        add_generation_prompt: end with what starts the assistant's turn.

    Raises:
        InvalidRequest: the template is not one of the built-in ones, or a message is malformed.
    """
    cdef vector[llama_chat_message] chat
    cdef llama_chat_message entry
    cdef const char * c_template = NULL
    cdef string out
    cdef int32_t n
    keep = []  # the bytes `chat` points into
    for message in messages:
        try:
            role, content = (message["role"], message["content"]) if isinstance(message, dict) else message
        except (KeyError, TypeError, ValueError):
            raise InvalidRequest(f"a message must be a role and a content, not {message!r}",
                                 name="messages", value=message) from None
        c_role = as_c_string("a message's role", role)
        c_content = as_c_string("a message's content", content)
        keep += [c_role, c_content]
        entry.role = c_role
        entry.content = c_content
        chat.push_back(entry)
    if template is not None:
        encoded = as_c_string("template", template)
        c_template = encoded
    out.resize(2 * sum(map(len, keep)) + 1024)
    while True:
        n = llama_chat_apply_template(c_template, chat.data(), chat.size(), bool(add_generation_prompt),
                                      &out[0], out.size())
        if n < 0:
            raise InvalidRequest("the chat template is not one of libllama's built-in ones; see "
                                 "chat_builtin_templates()", name="template", value=template)
        if n <= <int32_t> out.size():
            out.resize(n)
            return (<bytes> out).decode("utf-8", "surrogatepass")
        out.resize(n)
