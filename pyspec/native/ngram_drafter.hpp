// What one n-gram method is: what it remembers of one sequence, and what it expects to come next.
#pragma once

#include <cstdint>

#include "ngram_hash.hpp"

namespace pyspec {

// What a speculator did since it was made, all sequences together.
struct NgramTally {
    int64_t proposals = 0;   // times a sequence asked for a draft
    int64_t drafts = 0;      // times it got one
    int64_t drafted = 0;     // tokens in them
    int64_t discarded = 0;   // tokens of drafts that were too short
    int64_t rebuilds = 0;    // times a history turned out to have been cut or edited
    int64_t detached = 0;    // times a sequence was taken off a shared pool that misled it
    int64_t failures = 0;    // times memory ran out; the sequence then starts anew
    int64_t propose_ns = 0;
    int64_t index_ns = 0;
};

class NgramDrafter {
public:
    virtual ~NgramDrafter() = default;

    // history[from] and what follows is new.
    virtual void extend(const Tokens & history, size_t from) = 0;

    // Appends to `out`, which is empty, at most n_max tokens that may follow the history. It has been extended to.
    virtual void draft(const Tokens & history, int32_t n_max, Tokens & out) = 0;

    // The last draft was verified: `accepted` of its first `submitted` tokens were right.
    virtual void learn(int32_t submitted, int32_t accepted, NgramTally & tally) {
        (void) submitted;
        (void) accepted;
        (void) tally;
    }

    // The history ends here, whatever comes next is another one. Its first n_prompt tokens were given, not written.
    virtual void end(const Tokens & history, size_t n_prompt) {
        (void) history;
        (void) n_prompt;
    }

    // Back to the beginning: an empty history, nothing learned.
    virtual void clear() = 0;
};

// Appends n tokens to `out`, those from history[start] on; where the history ends they go on with `out` itself, so that
// a period is repeated.
inline void copy_continuation(const Tokens & history, size_t start, int32_t n, Tokens & out) {
    for (int32_t i = 0; i < n; ++i) {
        const size_t at = start + i;
        out.push_back(at < history.size() ? history[at] : out[at - history.size()]);
    }
}

}  // namespace pyspec
