// Giving freed memory back to the system.
#pragma once

#include <cstdlib>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace pyspec {

// glibc keeps what a thread has freed for that thread's next allocations; after a model was closed that can be tens
// of megabytes that nobody will ask for again.
inline void trim_memory() noexcept {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

}  // namespace pyspec
