// The tokens of a sequence as an n-gram speculator last saw them.
//
// A sequence normally grows, and then only what was added has to be looked at. But it may also have been cut, edited or
// replaced by another one since, without anybody saying so. A copy of the tokens shows that.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ngram_hash.hpp"

namespace pyspec {

// What a sequence consists of: its committed tokens, then its seed unless that is -1.
struct HistoryView {
    const Tokens & tokens;
    Token seed;

    size_t size() const { return tokens.size() + (seed >= 0 ? 1 : 0); }
    Token operator[](size_t i) const { return i < tokens.size() ? tokens[i] : seed; }
};

class History {
public:
    const Tokens & tokens() const { return tokens_; }
    size_t size() const { return tokens_.size(); }
    void clear() { tokens_.clear(); }

    // How many tokens at the front are still the same ones; size() if nothing but growth has happened.
    //
    // Exact for a sequence that became shorter, and for any of up to `window` tokens. For longer ones a call looks at
    // the newest tokens and at one window of the others, the next window each time, so that its cost stays the same.
    // (An edit in the middle that it does not notice at once can make a draft bad, never wrong text.)
    size_t n_unchanged(const HistoryView & now) {
        const size_t n = tokens_.size();
        if (now.size() >= n) {
            if (next_ >= n || n <= window) {
                next_ = 0;
            }
            const size_t end = std::min(next_ + window, n);
            const bool same = equal(now, n - std::min(n, newest), n) && equal(now, next_, end);
            next_ = end;
            if (same) {
                return n;
            }
        }
        const size_t end = std::min(n, now.size());
        size_t i = 0;
        while (i < end && tokens_[i] == now[i]) {
            ++i;
        }
        return i;
    }

    // Takes the sequence over, of which the first n_unchanged tokens are known.
    void assign(const HistoryView & now, size_t n_unchanged) {
        tokens_.resize(n_unchanged);
        if (n_unchanged < now.tokens.size()) {
            tokens_.insert(tokens_.end(), now.tokens.begin() + n_unchanged, now.tokens.end());
        }
        if (tokens_.size() < now.size()) {
            tokens_.push_back(now.seed);
        }
    }

    // Whether these are the first tokens of the sequence; looks at all of them.
    bool is_prefix_of(const HistoryView & now) const {
        return tokens_.size() <= now.size() && equal(now, 0, tokens_.size());
    }

private:
    static constexpr size_t window = 4096;
    static constexpr size_t newest = 64;

    bool equal(const HistoryView & now, size_t begin, size_t end) const {
        const size_t n = std::min(end, now.tokens.size());
        if (begin < n && !std::equal(tokens_.begin() + begin, tokens_.begin() + n, now.tokens.begin() + begin)) {
            return false;
        }
        return end <= now.tokens.size() || tokens_[end - 1] == now.seed;
    }

    Tokens tokens_;
    size_t next_ = 0;  // where the next window starts
};

}  // namespace pyspec
