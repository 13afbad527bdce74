// What the decoder knows about one sequence, between rounds and within one.
//
//   tokens   T, the committed tokens. The target's memory holds exactly these, at positions 0..|T|-1.
//   seed     the last sampled token: emitted, evaluated by nobody yet; its position is |T|. -1: none yet.
//   pending  tokens to read before anything is generated: the prompt, and whatever a failure made unread again.
//   draft    proposals for the positions |T|+1, |T|+2, ... of this round.
//   masks    where a grammar is followed by masks: row i holds a bit for each token that may stand at |T|+1+i, given the
//            draft before it.
#pragma once

#include <llama.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "row_sampler.hpp"

namespace pyspec {

struct Sequence {
    // between rounds
    bool active = false;      // a request uses it; else its tokens are what an earlier one left
    int32_t furthest = 0;     // positions its memory has ever reached since it was empty
    std::vector<llama_token> tokens;
    std::vector<llama_token> pending;
    llama_token seed = -1;
    RowSampler sampler;
    std::vector<llama_token> stop_tokens;  // nothing after one of these is accepted
    int32_t n_logprobs = -1;               // -1: none are computed
    bool sampled_logprobs = false;         // of what was drawn from, not of the raw row
    bool constrained = false;              // rows need masks
    std::string refusal;                   // why nothing can follow any more; empty: it can

    // the plan of this round
    bool planned = false;     // takes part in it; from the plan to the decode that carries it out
    int32_t budget = 0;       // most tokens to propose; 0: nobody is asked
    int32_t prompt_rows = 0;  // pending tokens to evaluate

    // this round
    std::vector<llama_token> draft;
    int32_t n_discarded = 0;  // proposals of a draft that was shorter than n_min
    int32_t n_refused = 0;    // proposals that were cut off, as the grammar does not let the first of them through
    const uint32_t * masks = nullptr;  // what the grammar allows behind the seed and each drafted token; borrowed
    int32_t mask_words = 0;   // of one row of them
    int32_t first_row = 0;    // its first row in the target's batch
    int32_t n_rows = 0;       // and how many it has there

    // its result
    std::vector<llama_token> emitted;
    std::vector<TokenLogprobs> logprobs;
    int32_t n_accepted = 0;
    std::string error;      // why no token could be chosen; empty when all went well
    bool dead_end = false;  // the grammar is why

    void reset() { *this = Sequence(); }

    // The request is over; what its memory holds stays.
    void release() {
        std::vector<llama_token> held = std::move(tokens);
        const int32_t reached = furthest;
        reset();
        tokens = std::move(held);
        furthest = reached;
    }

    void begin_round() {
        planned = false;
        budget = 0;
        prompt_rows = 0;
        draft.clear();
        n_discarded = 0;
        n_refused = 0;
        masks = nullptr;
        n_rows = 0;
        emitted.clear();
        logprobs.clear();
        n_accepted = 0;
        error.clear();
        dead_end = false;
    }

    // Past its prompt, with a token to go on from.
    bool generating() const { return active && pending.empty() && seed >= 0; }

    // A token is to be chosen this round: it generates, or the last of its prompt is read.
    bool chooses() const { return generating() || (seed < 0 && prompt_rows == (int32_t) pending.size()); }

    // Shortens the draft to its first tokens, as the grammar refuses the next one.
    void refuse_from(int32_t n) {
        n_refused += (int32_t) draft.size() - n;
        draft.resize((size_t) n);
    }

    bool stops_at(llama_token id) const {
        return std::find(stop_tokens.begin(), stop_tokens.end(), id) != stop_tokens.end();
    }
};

}  // namespace pyspec
