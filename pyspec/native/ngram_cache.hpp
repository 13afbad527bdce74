// ngram-cache: what has followed the last one to four tokens most often, in this text, in others, in a large corpus.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "ngram_counts.hpp"
#include "ngram_drafter.hpp"

namespace pyspec {

class CacheDrafter : public NgramDrafter {
public:
    // `fixed` and `dynamic` may be null. What is written goes into the dynamic counts, when it ends, if `teach`.
    CacheDrafter(int32_t n_draft, std::shared_ptr<const NgramCounts> fixed, std::shared_ptr<NgramCounts> dynamic,
                 bool teach)
        : n_draft_(n_draft), static_(std::move(fixed)), dynamic_(std::move(dynamic)), teach_(teach) {}

    void extend(const Tokens & history, size_t from) override {
        for (size_t i = from; i < history.size(); ++i) {
            context_.add_all(history, i);
        }
    }

    void draft(const Tokens & history, int32_t n_max, Tokens & out) override {
        int32_t n = (int32_t) std::min<size_t>(history.size(), ngram_order_max);
        Ngram recent = ngram_before(history.end(), n);  // the last n tokens; the draft moves it on
        while ((int32_t) out.size() < std::min(n_draft_, n_max)) {
            const Token token = next(recent, n);
            if (token < 0) {
                return;
            }
            out.push_back(token);
            if (n == ngram_order_max) {
                std::copy(recent.begin() + 1, recent.end(), recent.begin());
            } else {
                ++n;
            }
            recent[n - 1] = token;
        }
    }

    // Prompts are left out: a conversation comes again, whole, with every turn.
    void end(const Tokens & history, size_t n_prompt) override {
        for (size_t i = n_prompt; teach_ && i < history.size(); ++i) {
            dynamic_->add_all(history, i);
        }
    }

    void clear() override { context_.clear(); }

private:
    // By order: how many occurrences are enough, and the share of the most frequent token, in per cent. Those of
    // llama.cpp (common/ngram-cache.cpp).
    struct Thresholds {
        int32_t n_min[ngram_order_max];
        int32_t percent[ngram_order_max];
    };

    static constexpr Thresholds lax = { { 2, 2, 1, 1 }, { 66, 50, 50, 50 } };
    static constexpr Thresholds strict = { { 4, 3, 2, 2 }, { 75, 66, 66, 66 } };
    static constexpr int32_t static_order = 2;
    static constexpr int32_t n_rivals_max = 64;

    static bool passes(const NgramCounts::Entry & entry, const Thresholds & thresholds, int32_t order) {
        return entry.total >= thresholds.n_min[order - 1] &&
               100 * (int64_t) entry.n_best >= thresholds.percent[order - 1] * entry.total;
    }

    Token next(const Ngram & recent, int32_t n) const {
        const NgramCounts::Entry * corpus = nullptr;
        if (static_ && n >= static_order) {
            corpus = static_->find(ngram_before(recent.begin() + n, static_order));
        }
        Token token = best(context_, recent, n, corpus, lax);
        if (token < 0 && dynamic_) {
            token = best(*dynamic_, recent, n, corpus, strict);
        }
        if (token < 0 && corpus != nullptr && passes(*corpus, lax, static_order)) {
            token = corpus->best;
        }
        return token;
    }

    // From the longest n-gram that has an answer.
    Token best(const NgramCounts & counts, const Ngram & recent, int32_t n, const NgramCounts::Entry * corpus,
               const Thresholds & thresholds) const {
        for (int32_t order = n; order > 0; --order) {
            const NgramCounts::Entry * entry = counts.find(ngram_before(recent.begin() + n, order));
            if (entry == nullptr || !passes(*entry, thresholds, order)) {
                continue;
            }
            const Token token = corpus == nullptr ? entry->best : weighed(counts, *entry, *corpus, thresholds, order);
            if (token >= 0) {
                return token;
            }
        }
        return -1;
    }

    // With a corpus' counts as weights the most frequent token may lose, to one that has too small a share: then -1.
    // The newest successors are enough to ask: the most frequent one has at least half of all counts.
    Token weighed(const NgramCounts & counts, const NgramCounts::Entry & entry, const NgramCounts::Entry & corpus,
                  const Thresholds & thresholds, int32_t order) const {
        const auto weight = [&](Token token) -> int64_t {
            const int32_t n = static_->count(corpus, token);
            return n > 0 ? 100 * (int64_t) n : 1;
        };
        Token token = entry.best;
        int64_t count = entry.n_best;
        double score = (double) count * (double) weight(token);
        int32_t i = entry.newest;
        for (int32_t seen = 0; i >= 0 && seen < n_rivals_max; ++seen, i = counts.successor(i).next) {
            const NgramCounts::Successor & rival = counts.successor(i);
            const double rival_score = (double) rival.count * (double) weight(rival.token);
            if (rival_score > score) {
                token = rival.token;
                count = rival.count;
                score = rival_score;
            }
        }
        return 100 * count >= thresholds.percent[order - 1] * entry.total ? token : -1;
    }

    int32_t n_draft_;
    NgramCounts context_;
    std::shared_ptr<const NgramCounts> static_;
    std::shared_ptr<NgramCounts> dynamic_;
    bool teach_;
};

}  // namespace pyspec
