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
# Architectures the saver of llama.cpp ends the process for (llama-model-saver.cpp).
cdef frozenset UNSAVABLE = frozenset({"gemma3n", "bitnet", "t5", "apertus", "step35"})
