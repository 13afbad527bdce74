// ngram-simple: what followed the last n tokens when they occurred before.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ngram_drafter.hpp"
#include "ngram_index.hpp"

namespace pyspec {

// Whether the last `period` tokens are the same as the ones before them.
inline bool repeats(const Tokens & history, int32_t period) {
    return 2 * (size_t) period <= history.size() &&
           std::equal(history.end() - period, history.end(), history.end() - 2 * period);
}

// Where the best continuation of the history's last n tokens starts, or -1: behind their newest earlier occurrence that
// at least `wanted` tokens follow, or that the text has been repeating since (a loop goes on for as long as one likes).
// If there is none, behind the oldest, which most tokens follow. Looks at `wanted` occurrences at most.
inline int32_t best_continuation(const NgramIndex & index, const Tokens & history, int32_t wanted) {
    const int32_t end = (int32_t) history.size() - 1;
    int32_t longest = -1;
    for (int32_t at = index.before(end); at >= 0; at = index.before(at)) {
        const int32_t n_following = end - at;
        longest = at + 1;
        if (n_following >= wanted || repeats(history, n_following)) {
            break;
        }
    }
    return longest;
}

class SimpleDrafter : public NgramDrafter {
public:
    SimpleDrafter(int32_t size_n, int32_t size_m, int32_t min_hits)
        : index_(size_n), size_m_(size_m), min_hits_(min_hits) {}

    void extend(const Tokens & history, size_t from) override {
        for (size_t i = from; i < history.size(); ++i) {
            index_.append(history, i);
        }
    }

    void draft(const Tokens & history, int32_t n_max, Tokens & out) override {
        const int32_t key = index_.key_of(history.size() - 1);
        if (key < 0 || index_.n_seen(key) - 1 < min_hits_) {
            return;
        }
        const int32_t n = std::min(size_m_, n_max);
        copy_continuation(history, best_continuation(index_, history, n), n, out);
    }

    void clear() override { index_.clear(); }

private:
    NgramIndex index_;
    int32_t size_m_;
    int32_t min_hits_;
};

}  // namespace pyspec
