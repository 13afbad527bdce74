// Giving up the threads that ggml's computations leave waiting.
#pragma once

#if defined(__linux__)
#include <dlfcn.h>
#endif

namespace pyspec {

// GCC's OpenMP keeps a team of helpers for every thread that has computed, and counts them all: beyond the number of
// processors none of them spins any more while it waits. A thread that has nothing to do for a while should end its own.
// Asked of the library at run time, as only a backend built with OpenMP brings it along.
inline bool release_threads() noexcept {
#if defined(__linux__)
    using pause_all_t = int (*)(int);
    static const pause_all_t pause_all = [] {
        void * library = dlopen("libgomp.so.1", RTLD_NOLOAD | RTLD_LAZY);
        return library == nullptr ? nullptr : (pause_all_t) dlsym(library, "omp_pause_resource_all");
    }();
    constexpr int soft = 1;  // omp_pause_soft: what can be started again is ended
    return pause_all != nullptr && pause_all(soft) == 0;
#else
    return false;
#endif
}

}  // namespace pyspec
