# The library as a whole: start-up, versions, devices, and its log.

cdef extern from "log.hpp" namespace "pyspec" nogil:
    cdef cppclass LogLine:
        int level
        string text

    cdef cppclass LogSink:
        @staticmethod
        LogSink & get()
        size_t take(vector[LogLine] & out) except +
        cpp_bool pending() noexcept
        atomic[int] threshold
        atomic[cpp_bool] closed

    void log_callback(ggml_log_level level, const char * text, void * user_data) noexcept
    void clear_reasons() noexcept
    vector[string] reasons() except +


LOGGER = logging.getLogger("pyspec.llama")
LOGGER.addHandler(logging.NullHandler())

cdef dict LOG_LEVELS = {
    GGML_LOG_LEVEL_DEBUG: logging.DEBUG,
    GGML_LOG_LEVEL_INFO: logging.INFO,
    GGML_LOG_LEVEL_WARN: logging.WARNING,
    GGML_LOG_LEVEL_ERROR: logging.ERROR,
}
cdef bint draining = False


cdef int drain_log() except -1:
    """Hand what libllama logged to Python's logging. Called with the GIL, at the end of calls."""
    global draining
    cdef vector[LogLine] lines
    cdef size_t dropped
    if draining or not LogSink.get().pending():
        return 0
    draining = True  # a handler may call into this module again
    try:
        dropped = LogSink.get().take(lines)
        if dropped:
            LOGGER.warning("%d older lines of libllama's log were lost", dropped)
        for line in lines:
            level = LOG_LEVELS.get(line.level, logging.INFO)
            if LOGGER.isEnabledFor(level):
                LOGGER.log(level, "%s", (<bytes> line.text).decode("utf-8", "replace").rstrip())
    finally:
        draining = False
    return 0


cdef void begin_call():
    """Before a call that can fail: forget old complaints, and queue only lines somebody listens to."""
    clear_reasons()
    level = LOGGER.getEffectiveLevel()
    LogSink.get().threshold.store(
        GGML_LOG_LEVEL_DEBUG if level <= logging.DEBUG
        else GGML_LOG_LEVEL_INFO if level <= logging.INFO
        else GGML_LOG_LEVEL_WARN if level <= logging.WARNING
        else GGML_LOG_LEVEL_ERROR
    )


cdef str reason(str otherwise="libllama gives no reason"):
    """What libllama logged about the call that just failed in this thread; also hands the log on."""
    cdef list texts = []
    for line in reasons():
        text = (<bytes> line).decode("utf-8", "replace").strip()
        function, colon, rest = text.partition(": ")
        if colon and function.replace("_", "").isalnum():
            text = rest.strip()
        if text and text not in texts:
            texts.append(text)
    drain_log()
    return "; ".join(texts) or otherwise


cdef object live_contexts = weakref.WeakSet()
cdef bint interpreter_ends = False
# How long the end of the interpreter waits for computations in daemon threads, in seconds.
cdef double LAST_WAIT = 10.0


def _end_of_interpreter() -> None:
    """Stop what daemon threads compute: the process may not take libllama down around them."""
    global interpreter_ends
    cdef Context context
    interpreter_ends = True
    deadline = time.monotonic() + LAST_WAIT
    contexts = list(live_contexts)
    for context in contexts:
        context.abort_flag.store(abort_requested)
    for context in contexts:
        while context.in_use and time.monotonic() < deadline:
            time.sleep(0.001)
    LogSink.get().closed.store(True)


cdef void start_library() except *:
    llama_log_set(<ggml_log_callback> log_callback, NULL)
    begin_call()
    llama_backend_init()
    atexit.register(_end_of_interpreter)
    drain_log()


start_library()


def llama_version() -> str:
    """The version of libllama, e.g. ``"0.5.0"``."""
    return c_llama_version().decode()


def system_info() -> str:
    """The CPU and GPU features this build of ggml uses, as libllama writes them."""
    return llama_print_system_info().decode("utf-8", "replace").strip()


def backends() -> list[str]:
    """Names of the compute backends in this build, e.g. ``["CPU"]``."""
    return [ggml_backend_reg_name(ggml_backend_reg_get(i)).decode() for i in range(ggml_backend_reg_count())]


cdef tuple DEVICE_TYPES = ("cpu", "gpu", "igpu", "accel", "meta")


def devices() -> list[dict[str, object]]:
    """The devices models can run on.

    Returns:
        One dict a device: ``name`` (what ``Model(devices=...)`` takes), ``description``, ``type`` (``"cpu"``,
        ``"gpu"``, ``"igpu"``, ``"accel"`` or ``"meta"``), ``backend``, ``memory_free`` and ``memory_total``
        in bytes.
    """
    cdef size_t free, total
    cdef ggml_backend_dev_t device
    result = []
    for i in range(ggml_backend_dev_count()):
        device = ggml_backend_dev_get(i)
        free = total = 0
        ggml_backend_dev_memory(device, &free, &total)
        result.append({
            "name": ggml_backend_dev_name(device).decode(),
            "description": ggml_backend_dev_description(device).decode("utf-8", "replace"),
            "type": DEVICE_TYPES[<int> ggml_backend_dev_type(device)],
            "backend": ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)).decode(),
            "memory_free": free,
            "memory_total": total,
        })
    return result


def max_devices() -> int:
    """How many devices libllama can spread a model over."""
    return llama_max_devices()


def supports_gpu_offload() -> bool:
    """Whether a GPU backend is built in and has a device."""
    return llama_supports_gpu_offload()


def supports_mmap() -> bool:
    """Whether model files can be mapped into memory here."""
    return llama_supports_mmap()


def supports_mlock() -> bool:
    """Whether mapped model files can be locked into memory here."""
    return llama_supports_mlock()


cdef extern from "trim.hpp" namespace "pyspec" nogil:
    void c_trim_memory "pyspec::trim_memory"() noexcept
    void begin_giving_back "pyspec::GivingBack::begin"() noexcept
    void end_giving_back "pyspec::GivingBack::end"() noexcept


def trim_memory() -> None:
    """Give memory that was freed, and that the C library kept, back to the system (glibc; nothing elsewhere)."""
    with nogil:
        c_trim_memory()


@contextlib.contextmanager
def giving_memory_back():
    """A context in which freed memory goes back to the system as soon as it can (glibc; nothing elsewhere)."""
    begin_giving_back()
    try:
        yield
    finally:
        trim_memory()
        end_giving_back()


cdef extern from "threads.hpp" namespace "pyspec" nogil:
    bint c_release_threads "pyspec::release_threads"() noexcept


def release_threads() -> bool:
    """End the helpers the calling thread keeps from its last computation (OpenMP's, of GCC); others then wait faster.

    Where the helpers of all threads together are more than the processors, GCC's OpenMP lets them sleep instead of spin
    between two steps of a computation, which costs small decodes a third of their speed. The next computation starts
    them again, in a fraction of a millisecond. Returns False where there is no such runtime.
    """
    cdef bint released
    with nogil:
        released = c_release_threads()
    return released


def time_us() -> int:
    """The clock of libllama, in microseconds."""
    return llama_time_us()
