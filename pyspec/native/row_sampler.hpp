// The target's own choice for one row of logits, through a libllama sampler chain.
//
// Three ways lead to the same token, and the cheapest one that is exact for the chain is taken:
//   argmax     the chain always keeps and picks the largest logit (SamplerPlan in Python decides that); or
//              it does unless that token's logit was lowered: by a bias, a penalty, DRY
//   preselect  the chain keeps only its top k, and what comes before that step changes known tokens
//              only: the k best raw logits and those tokens are a superset of what survives
//   whole row  everything else
// A grammar sampler is applied by rejection as llama.cpp does (common/sampling.cpp): the chain picks first, and
// only when its pick does not fit are all candidates filtered by the grammar and the chain asked again. A mask, which
// somebody else has worked out for the row, comes first: the chain never sees what it does not allow.
//
// Coupled: the chain ends before a token is picked, and noise that belongs to seed, position and token picks it. Drafts
// can then be drawn with the same noise (`draw_alike`). Where the chain is asked again because of the grammar, the noise
// is another one: the first pick failing says something about the first one's, and draws would no longer be exact.
#pragma once

#include <llama.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "coupled_noise.hpp"
#include "select.hpp"

namespace pyspec {

// Log-probabilities of one emitted token and of the best ones: under the softmax over the raw row, before any sampler,
// or in the distribution it was drawn from, after all of them.
struct TokenLogprobs {
    float chosen = 0.0f;
    std::vector<Scored> top;  // .logit holds the log-probability
};

// A row in which nothing can be chosen: every candidate is -inf or NaN, or ...
struct NoCandidate : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// ... the grammar lets none of them through.
struct DeadEnd : NoCandidate {
    using NoCandidate::NoCandidate;
};

class RowSampler {
  public:
    llama_sampler * chain = nullptr;     // borrowed: the Python objects outlive this one
    llama_sampler * grammar = nullptr;   // borrowed, may be null
    bool argmax_always = false;
    bool argmax_unless_altered = false;  // altered: among `biased`, or the last `history` accepted tokens
    int32_t preselect = 0;               // 0: whole rows
    int32_t history = 0;
    bool needs_accept = true;            // the chain has state that depends on accepted tokens
    std::vector<llama_token> biased;     // tokens whose logits the chain changes whatever the history
    bool coupled = false;                // the chain picks nothing, noise does
    uint32_t seed = 0;                   // of that noise
    bool dead_end = false;               // the last sample() failed for want of a token that fits the grammar

    // The prompt, as the chain sees it before the first choice. The grammar starts after it.
    void see_prompt(const std::vector<llama_token> & tokens) {
        recent_.clear();
        n_seen_ = (int64_t) tokens.size();
        for (llama_token t : tokens) {
            accept_chain(t);
        }
    }

    // Chooses from logits[0..n_vocab), of which the mask (nullptr: none) allows some, and accepts the choice. -1, with
    // the reason in `error`, when nothing can be chosen; no exception of libllama's gets past here, so callers need no
    // GIL to handle one.
    llama_token sample(const float * logits, int32_t n_vocab, const uint32_t * mask, std::string & error) noexcept {
        dead_end = false;
        try {
            const llama_token id = choose(logits, n_vocab, mask);
            if (grammar != nullptr) {
                try {
                    llama_sampler_accept(grammar, id);
                } catch (const std::exception & e) {
                    throw DeadEnd(e.what());
                }
            }
            accept_chain(id);
            ++n_seen_;
            return id;
        } catch (const std::exception & e) {
            dead_end = dynamic_cast<const DeadEnd *>(&e) != nullptr;
            error = e.what();
            return -1;
        }
    }

    // Coupled: how many of a draft model's best tokens `draw_alike` can make use of.
    int32_t n_alike() const { return preselect > 0 ? std::min(preselect, max_alike) : max_alike; }

    // Coupled: what would be chosen `ahead` tokens from now if these were the row's best logits. -1: none of them. What
    // the chain knows of accepted tokens is what it knows now.
    llama_token draw_alike(const std::vector<Scored> & best, int32_t ahead) noexcept {
        candidates_.clear();
        drawn_from_ = 0;
        for (const Scored & s : best) {
            candidates_.push_back({ s.id, s.logit, 0.0f });
        }
        try {
            return apply_chain(first_asking, ahead);
        } catch (const std::exception &) {
            return -1;
        }
    }

    // How many of the first tokens of a draft the grammar sampler would let through, one after the other from where it
    // is now. It is as before.
    int32_t fitting(const std::vector<llama_token> & draft) const noexcept {
        if (grammar == nullptr || draft.empty()) {
            return (int32_t) draft.size();
        }
        if (!fits(grammar, draft[0])) {
            return 0;
        }
        int32_t n = 1;
        if (draft.size() > 1) {
            llama_sampler * ahead = llama_sampler_clone(grammar);
            try {
                for (;;) {
                    llama_sampler_accept(ahead, draft[(size_t) n - 1]);
                    if (n == (int32_t) draft.size() || !fits(ahead, draft[(size_t) n])) {
                        break;
                    }
                    ++n;
                }
            } catch (const std::exception &) {
            }
            llama_sampler_free(ahead);
        }
        return n;
    }

    // The probabilities the last sample() drew from: of the token it chose, and of the n_top best of those that had
    // one. Where no random number was needed the chosen token is all there was.
    void sampled_logprobs(llama_token chosen, int32_t n_top, TokenLogprobs & out) {
        best_.clear();
        out.chosen = 0.0f;
        if (coupled) {
            fill_probabilities();
        }
        if (drawn_from_ == 0) {
            best_.push_back({ chosen, 0.0f });
        }
        for (size_t i = 0; i < drawn_from_; ++i) {
            const llama_token_data & c = candidates_[i];
            if (c.p > 0.0f) {
                best_.push_back({ c.id, std::log(c.p) });
                if (c.id == chosen) {
                    out.chosen = best_.back().logit;
                }
            }
        }
        const size_t n = std::min(best_.size(), (size_t) std::max(n_top, 0));
        std::partial_sort(best_.begin(), best_.begin() + (ptrdiff_t) n, best_.end(), ranks_before);
        out.top.assign(best_.begin(), best_.begin() + (ptrdiff_t) n);
    }

    // The row's log-probabilities: of the chosen token, and of the n_top best.
    static void logprobs(const float * logits, int32_t n_vocab, llama_token chosen, int32_t n_top, TokenLogprobs & out) {
        const double norm = log_sum_exp(logits, n_vocab);
        out.chosen = (float) (logits[chosen] - norm);
        top_k(logits, n_vocab, n_top, out.top);
        for (Scored & s : out.top) {
            s.logit = (float) (s.logit - norm);
        }
    }

  private:
    std::vector<llama_token> recent_;         // last `history` accepted tokens, newest last
    std::vector<llama_token_data> candidates_;
    std::vector<Scored> best_;
    int64_t n_seen_ = 0;     // tokens of the prompt, and accepted ones
    size_t drawn_from_ = 0;  // so many of the candidates were left when the chain picked one; 0: it was not asked

    // Streams of noise, by how often the chain was asked for a token.
    static constexpr uint32_t first_asking = 0;
    static constexpr uint32_t second_asking = 1;
    // What a draft model leaves out beyond so many tokens is seldom drawn.
    static constexpr int32_t max_alike = 256;

    static constexpr const char * no_token_fits = "no token of the vocabulary fits the grammar here";

    void accept_chain(llama_token id) {
        if (needs_accept) {
            llama_sampler_accept(chain, id);
        }
        if (history > 0) {
            if ((int32_t) recent_.size() == 2 * history) {
                recent_.erase(recent_.begin(), recent_.end() - history + 1);
            }
            recent_.push_back(id);
        }
    }

    llama_token choose(const float * logits, int32_t n_vocab, const uint32_t * mask) {
        drawn_from_ = 0;
        llama_token id = -1;
        if (argmax_always || argmax_unless_altered) {
            id = argmax(logits, n_vocab);
            if (id >= 0 && mask != nullptr && !allows(mask, id)) {
                id = argmax_allowed(logits, mask, n_vocab);
            }
        }
        if (!argmax_always && (id < 0 || altered(id))) {
            load(logits, n_vocab, mask);
            id = apply_chain(first_asking);
        }
        if (id < 0) {
            if (mask != nullptr) {
                throw DeadEnd(no_token_fits);
            }
            throw NoCandidate("every logit of the row is -inf or NaN after the sampler chain");
        }
        if (grammar == nullptr || fits(grammar, id)) {
            return id;
        }
        load_whole(logits, n_vocab, mask);
        llama_token_data_array all = { candidates_.data(), candidates_.size(), -1, false };
        llama_sampler_apply(grammar, &all);
        // Without those it refuses, as libllama's typical sampling and Mirostat can't do with a probability of 0.
        candidates_.resize(all.size);
        candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), [](const llama_token_data & c) {
            return c.logit == -INFINITY;
        }), candidates_.end());
        id = apply_chain(second_asking);
        if (id < 0) {
            throw DeadEnd(no_token_fits);
        }
        return id;
    }

    bool altered(llama_token id) const {
        const auto first = recent_.end() - (ptrdiff_t) std::min(recent_.size(), (size_t) history);
        return std::find(first, recent_.end(), id) != recent_.end() ||
               std::find(biased.begin(), biased.end(), id) != biased.end();
    }

    static bool fits(llama_sampler * grammar, llama_token id) {
        llama_token_data one = { id, 1.0f, 0.0f };
        llama_token_data_array single = { &one, 1, -1, false };
        llama_sampler_apply(grammar, &single);
        return single.size == 1 && single.data[0].logit != -INFINITY;
    }

    // Runs the chain over candidates_; -1 when it leaves nothing that can be chosen. `ahead`: tokens between the last
    // accepted one and the one that is chosen.
    llama_token apply_chain(uint32_t asking, int32_t ahead = 0) {
        const bool any = std::any_of(candidates_.begin(), candidates_.end(), [](const llama_token_data & c) {
            return c.logit > -INFINITY;  // false for NaN
        });
        if (!any) {
            return -1;
        }
        llama_token_data_array cur = { candidates_.data(), candidates_.size(), -1, false };
        llama_sampler_apply(chain, &cur);
        if (coupled) {
            cur.selected = (int64_t) CoupledNoise(seed, n_seen_ + ahead, asking).pick(cur.data, cur.size);
        }
        if (cur.selected < 0 || (size_t) cur.selected >= cur.size) {
            return -1;
        }
        if (cur.data != candidates_.data()) {  // no sampler of libllama's does that
            candidates_.assign(cur.data, cur.data + cur.size);
        }
        drawn_from_ = cur.size;
        const llama_token_data & picked = candidates_[(size_t) cur.selected];
        return picked.logit > -INFINITY ? picked.id : -1;
    }

    // Of the candidates that were drawn from.
    void fill_probabilities() {
        float most = -INFINITY;
        for (size_t i = 0; i < drawn_from_; ++i) {
            most = std::max(most, candidates_[i].logit);
        }
        double sum = 0.0;
        for (size_t i = 0; i < drawn_from_; ++i) {
            candidates_[i].p = std::exp(candidates_[i].logit - most);
            sum += candidates_[i].p;
        }
        for (size_t i = 0; i < drawn_from_; ++i) {
            candidates_[i].p = (float) (candidates_[i].p / sum);
        }
    }

    void load(const float * logits, int32_t n_vocab, const uint32_t * mask) {
        if (preselect > 0 && preselect < n_vocab) {
            load_best(logits, n_vocab, mask);
        } else {
            load_whole(logits, n_vocab, mask);
        }
    }

    void load_whole(const float * logits, int32_t n_vocab, const uint32_t * mask) {
        if (mask != nullptr) {
            candidates_.clear();
            for_each_allowed(mask, n_vocab, [&](int32_t id) { candidates_.push_back({ id, logits[id], 0.0f }); });
            return;
        }
        candidates_.resize((size_t) n_vocab);
        for (int32_t i = 0; i < n_vocab; ++i) {
            candidates_[i] = { i, logits[i], 0.0f };
        }
    }

    // In id order, as whole rows are, so that the chain sees the same order either way.
    void load_best(const float * logits, int32_t n_vocab, const uint32_t * mask) {
        top_k(logits, n_vocab, preselect, best_, mask);
        candidates_.clear();
        for (const Scored & s : best_) {
            candidates_.push_back({ s.id, s.logit, 0.0f });
        }
        const auto add = [&](llama_token id) {
            if (mask == nullptr || allows(mask, id)) {
                candidates_.push_back({ id, logits[id], 0.0f });
            }
        };
        const size_t seen = std::min(recent_.size(), (size_t) history);
        std::for_each(recent_.end() - (ptrdiff_t) seen, recent_.end(), add);
        std::for_each(biased.begin(), biased.end(), add);
        const auto by_id = [](const llama_token_data & a, const llama_token_data & b) { return a.id < b.id; };
        const auto same_id = [](const llama_token_data & a, const llama_token_data & b) { return a.id == b.id; };
        std::sort(candidates_.begin(), candidates_.end(), by_id);
        candidates_.erase(std::unique(candidates_.begin(), candidates_.end(), same_id), candidates_.end());
    }
};

}  // namespace pyspec
