// Giving freed memory back to the system.
#pragma once

#include <atomic>
#include <cstdlib>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace pyspec {

// glibc gives the end of a thread's heap back only when it has grown beyond a threshold, which rises to 64 MB as large
// blocks are freed. While an engine closes the threshold is low, so that what libllama had allocated on the engine's
// thread leaves with it. Afterwards both of glibc's thresholds are where its own rule takes them when a block of
// 32 MB is freed. Whoever has set them in the environment keeps what was set.
class GivingBack {
  public:
    static void begin() noexcept { set(1); }
    static void end() noexcept { set(-1); }

  private:
    static void set(int step) noexcept {
#if defined(__GLIBC__)
        static std::atomic<int> n_closing{0};
        static const bool theirs = std::getenv("MALLOC_TRIM_THRESHOLD_") || std::getenv("MALLOC_MMAP_THRESHOLD_") ||
                                   std::getenv("GLIBC_TUNABLES");
        const int n = n_closing += step;
        if (theirs) {
            return;
        }
        mallopt(M_MMAP_THRESHOLD, 32 << 20);
        mallopt(M_TRIM_THRESHOLD, n > 0 ? 128 << 10 : 64 << 20);
#else
        (void) step;
#endif
    }
};

// glibc keeps what a thread has freed for that thread's next allocations; after a model was closed that can be tens
// of megabytes that nobody will ask for again.
inline void trim_memory() noexcept {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

}  // namespace pyspec
