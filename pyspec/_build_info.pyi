# The module itself is written by the build (cmake/build_info.py.in).
version: str
llama_version: str
llama_commit: str
compiler: str
build_type: str
system: str
cmake_args: str
ggml_options: tuple[str, ...]
