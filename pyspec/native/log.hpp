// libllama's log, collected without the GIL.
//
// libllama calls back from any thread, in fragments, and also while the process ends. The callback joins
// fragments into lines and puts them into a bounded queue; Python empties it when it next has the GIL.
// The lines of errors and warnings are kept per thread as well: they are the reason an exception gives.
#pragma once

#include <ggml.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace pyspec {

struct LogLine {
    int level = 0;
    std::string text;
};

class LogSink {
  public:
    static constexpr size_t capacity = 4096;

    // Never destroyed: libllama may log while static objects are being torn down.
    static LogSink & get() {
        static LogSink * sink = new LogSink;
        return *sink;
    }

    void push(int level, std::string && text) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (lines_.size() == capacity) {
            lines_.pop_front();
            ++dropped_;
        }
        lines_.push_back({level, std::move(text)});
        pending_.store(true, std::memory_order_release);
    }

    // All lines so far, and how many were lost because nobody took them.
    size_t take(std::vector<LogLine> & out) {
        std::lock_guard<std::mutex> lock(mutex_);
        out.assign(std::make_move_iterator(lines_.begin()), std::make_move_iterator(lines_.end()));
        lines_.clear();
        pending_.store(false, std::memory_order_release);
        return std::exchange(dropped_, 0);
    }

    bool pending() const noexcept { return pending_.load(std::memory_order_acquire); }

    std::atomic<int>  threshold { GGML_LOG_LEVEL_INFO };  // lines below it are not queued
    std::atomic<bool> closed { false };                   // set when the interpreter ends

  private:
    std::mutex mutex_;
    std::deque<LogLine> lines_;
    size_t dropped_ = 0;
    std::atomic<bool> pending_ { false };
};

// What this thread's calls complained about since clear_reasons().
struct ThreadLog {
    static constexpr size_t max_reasons = 8;

    int level = GGML_LOG_LEVEL_INFO;
    std::string line;  // not ended yet
    std::vector<std::string> errors;
    std::vector<std::string> warnings;

    static ThreadLog & get() {
        thread_local ThreadLog log;
        return log;
    }

    static void keep(std::vector<std::string> & list, const std::string & text) {
        if (list.size() == max_reasons) {
            list.erase(list.begin());
        }
        list.push_back(text);
    }

    void end_line() {
        if (line.empty()) {
            return;
        }
        if (level == GGML_LOG_LEVEL_ERROR) {
            keep(errors, line);
        } else if (level == GGML_LOG_LEVEL_WARN) {
            keep(warnings, line);
        }
        LogSink & sink = LogSink::get();
        if (level >= sink.threshold.load(std::memory_order_relaxed)) {
            sink.push(level, std::move(line));
        }
        line.clear();
    }
};

inline void log_callback(enum ggml_log_level level, const char * text, void *) noexcept {
    if (text == nullptr || LogSink::get().closed.load(std::memory_order_relaxed)) {
        return;
    }
    try {
        ThreadLog & log = ThreadLog::get();
        if (level != GGML_LOG_LEVEL_CONT) {
            log.end_line();
            log.level = level == GGML_LOG_LEVEL_NONE ? (int) GGML_LOG_LEVEL_INFO : (int) level;
        }
        for (const char * c = text; *c != '\0'; ++c) {
            if (*c == '\n') {
                log.end_line();
            } else {
                log.line.push_back(*c);
            }
        }
    } catch (...) {
        // out of memory: the line is lost
    }
}

inline void clear_reasons() noexcept {
    ThreadLog & log = ThreadLog::get();
    log.errors.clear();
    log.warnings.clear();
}

// The errors since clear_reasons(), or else the warnings, oldest first.
inline std::vector<std::string> reasons() {
    ThreadLog & log = ThreadLog::get();
    return log.errors.empty() ? log.warnings : log.errors;
}

}  // namespace pyspec
