// ngram-mod: a table from n-gram to next token, applied again and again.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "ngram_drafter.hpp"
#include "ngram_pool.hpp"

namespace pyspec {

class ModDrafter : public NgramDrafter {
public:
    // `shared`: what all sequences write, and read where their own history has no answer; may be null.
    ModDrafter(int32_t n_match, std::shared_ptr<NgramPool> shared)
        : n_(n_match), last_n_(n_match), shared_(std::move(shared)) {}

    void extend(const Tokens & history, size_t from) override {
        for (size_t i = from; i < history.size(); ++i) {
            if (i >= (size_t) n_) {
                own_.put(last_n_.value(), history[i]);
                if (shared_) {
                    shared_->put(last_n_.value(), history[i]);
                }
            }
            last_n_.append(history, i, n_);
        }
    }

    void draft(const Tokens & history, int32_t n_max, Tokens & out) override {
        used_shared_ = false;
        if (history.size() < (size_t) n_) {
            return;
        }
        const size_t first = history.size() - n_;  // of the n-gram
        RollingHash window = last_n_;
        while ((int32_t) out.size() < n_max) {
            Token token = own_.find(window.value());
            if (token < 0 && shared_ && attached_) {
                token = shared_->find(window.value());
                used_shared_ |= token >= 0;
            }
            if (token < 0) {
                return;
            }
            const size_t leaving = first + out.size();
            window.slide(token, leaving < history.size() ? history[leaving] : out[leaving - history.size()]);
            out.push_back(token);
        }
    }

    // A sequence that others mislead stops listening to them. Its own n-grams are what was really said.
    void learn(int32_t submitted, int32_t accepted, NgramTally & tally) override {
        if (!used_shared_) {
            return;
        }
        n_low_ = 4 * (int64_t) accepted < submitted ? n_low_ + 1 : 0;
        if (n_low_ == n_low_max && attached_) {
            attached_ = false;
            ++tally.detached;
        }
    }

    void clear() override {
        last_n_.clear();
        own_.clear();
        n_low_ = 0;
        attached_ = true;
    }

private:
    static constexpr int32_t n_low_max = 5;

    int32_t n_;
    RollingHash last_n_;
    NgramPool own_;
    std::shared_ptr<NgramPool> shared_;
    bool attached_ = true;
    bool used_shared_ = false;  // by the last draft
    int32_t n_low_ = 0;         // drafts in a row of which less than a quarter was accepted
};

}  // namespace pyspec
