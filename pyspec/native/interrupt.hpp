// Ctrl-C while a decode runs without the GIL.
//
// Python's own signal handler only notes that a signal came; the KeyboardInterrupt is raised when the main
// thread is back in Python, which a long prompt can put off for minutes. While the main thread is inside
// libllama its SIGINT handler is therefore replaced by one that also sets the abort flags of the contexts in
// use, and then does what Python's does. The decode ends with "aborted", and Python raises.
#pragma once

#include <atomic>
#include <cstring>

#ifndef _WIN32
#include <signal.h>
#endif

namespace pyspec {

constexpr int abort_requested = 1;    // Context.abort()
constexpr int abort_interrupted = 2;  // SIGINT

#ifndef _WIN32

class Interrupts {
  public:
    static constexpr int max_flags = 16;

    // Only the main thread calls these two, with the GIL; the handler may run in any thread.
    static void watch(std::atomic<int> * flag) noexcept {
        for (auto & slot : flags_) {
            std::atomic<int> * expected = nullptr;
            if (slot.compare_exchange_strong(expected, flag)) {
                if (n_watched_++ == 0) {
                    install();
                }
                return;
            }
        }
    }

    static void unwatch(std::atomic<int> * flag) noexcept {
        for (auto & slot : flags_) {
            std::atomic<int> * expected = flag;
            if (slot.compare_exchange_strong(expected, nullptr)) {
                if (--n_watched_ == 0) {
                    restore();
                }
                return;
            }
        }
    }

  private:
    inline static std::atomic<std::atomic<int> *> flags_[max_flags] = {};
    inline static int n_watched_ = 0;
    inline static bool installed_ = false;
    inline static struct sigaction pythons_ = {};

    static void install() noexcept {
        struct sigaction current;
        if (sigaction(SIGINT, nullptr, &current) != 0) {
            return;
        }
        const bool with_info = (current.sa_flags & SA_SIGINFO) != 0;
        if (!with_info && (current.sa_handler == SIG_DFL || current.sa_handler == SIG_IGN)) {
            return;  // the process dies, or does not care
        }
        pythons_ = current;
        struct sigaction ours = current;
        ours.sa_flags |= SA_SIGINFO;
        ours.sa_sigaction = on_signal;
        installed_ = sigaction(SIGINT, &ours, nullptr) == 0;
    }

    static void restore() noexcept {
        struct sigaction current;
        if (installed_ && sigaction(SIGINT, nullptr, &current) == 0 &&
            (current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == on_signal) {
            sigaction(SIGINT, &pythons_, nullptr);
        }
        installed_ = false;
    }

    static void on_signal(int number, siginfo_t * info, void * context) noexcept {
        for (auto & slot : flags_) {
            if (std::atomic<int> * flag = slot.load()) {
                int expected = 0;
                flag->compare_exchange_strong(expected, abort_interrupted);
            }
        }
        if ((pythons_.sa_flags & SA_SIGINFO) != 0) {
            pythons_.sa_sigaction(number, info, context);
        } else {
            pythons_.sa_handler(number);
        }
    }
};

#else

class Interrupts {
  public:
    static void watch(std::atomic<int> *) noexcept {}
    static void unwatch(std::atomic<int> *) noexcept {}
};

#endif

// The callback libllama's CPU backend polls between graph nodes.
inline bool abort_callback(void * flag) noexcept {
    return static_cast<std::atomic<int> *>(flag)->load(std::memory_order_relaxed) != 0;
}

}  // namespace pyspec
