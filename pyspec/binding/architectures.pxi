# What libllama can do for which architecture, where it has no function that tells.

# Architectures whose graphs hand out the inputs of their layers, and those that do so behind the last layer
# as well; for the others libllama ends the process when asked (llama-graph.cpp, models/*.cpp: t_layer_inp).
cdef frozenset LAYER_INPUT_ARCHS = frozenset({
    "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan-dense", "hunyuan_vl", "lfm2", "lfm2moe",
    "llama", "llama-embed", "mimo2", "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h",
    "nemotron_h_moe", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next", "qwen4exp",
})
cdef frozenset LAST_LAYER_INPUT_ARCHS = frozenset({"deepseek4", "mimo2", "nemotron_h", "nemotron_h_moe"})
# Architectures that compute a hidden state for NextN drafting (models/*.cpp: t_h_nextn).
cdef frozenset NEXTN_ARCHS = frozenset({
    "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "dflash", "eagle3", "gemma4",
    "gemma4-assistant", "glm-dsa", "glm4moe", "glm5-next", "gpt-oss", "hy_v3", "mimo2", "mistral4",
    "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "step35",
})
# Of those, the ones with a graph for NextN layers ("mtp" contexts): for one layer, and for several in turn. With several
# hy_v3's layers hand on a wrong hidden state (hy-v3.cpp sets it before it picks the output rows), so one of them is used.
cdef frozenset ONE_NEXTN_ARCHS = frozenset({
    "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe", "nemotron_h_moe",
    "qwen35", "qwen35moe", "qwen3next",
})
cdef frozenset NEXTN_IN_TURN_ARCHS = frozenset({"mimo2", "step35"})
cdef frozenset FIRST_NEXTN_ARCHS = frozenset({"hy_v3"})
# Of those, the ones whose NextN graphs compute the hidden states of output rows only.
cdef frozenset CROPPED_NEXTN_ARCHS = frozenset({"deepseek4", "mimo2", "nemotron_h_moe", "qwen3next", "step35"})


def n_mtp_heads(arch, n_layer_nextn) -> int:
    """How many of an architecture's NextN layers can draft one after the other; 0: libllama has no graph for them.

    Args:
        arch: the architecture, e.g. ``"qwen35"``.
        n_layer_nextn: NextN layers that a model of it has.
    """
    cdef int64_t n = as_int("n_layer_nextn", n_layer_nextn, 0, 1 << 30)
    if arch in NEXTN_IN_TURN_ARCHS:
        return n
    if arch in FIRST_NEXTN_ARCHS:
        return min(n, 1)
    return 1 if arch in ONE_NEXTN_ARCHS and n == 1 else 0


# Architectures the saver of llama.cpp ends the process for (llama-model-saver.cpp).
cdef frozenset UNSAVABLE = frozenset({"gemma3n", "bitnet", "t5", "apertus", "step35"})
