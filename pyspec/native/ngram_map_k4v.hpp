// ngram-map-k4v: for each n-gram up to four different continuations (values) of m tokens, with counts and lengths.
//
// A value is counted once, when the m-th token behind an occurrence has come. Occurrences that are not that old yet are
// candidates of one count each. Candidates vote on the draft token by token, each with its count: those that begin in
// the same way stand together for as long as they agree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ngram_drafter.hpp"
#include "ngram_index.hpp"
#include "ngram_length.hpp"

namespace pyspec {

class MapK4VDrafter : public NgramDrafter {
public:
    MapK4VDrafter(int32_t size_n, int32_t size_m, int32_t min_hits)
        : index_(size_n), size_m_(size_m), min_hits_(min_hits) {}

    void extend(const Tokens & history, size_t from) override {
        for (size_t i = from; i < history.size(); ++i) {
            index_.append(history, i);
            keys_.resize(index_.n_keys(), Key{ -1, DraftLength(size_m_) });
            if (i >= (size_t) size_m_ && index_.key_of(i - size_m_) >= 0) {
                count_value(history, index_.key_of(i - size_m_), (int32_t) i - size_m_ + 1);
            }
        }
    }

    void draft(const Tokens & history, int32_t n_max, Tokens & out) override {
        const int32_t key = index_.key_of(history.size() - 1);
        if (key < 0 || index_.n_seen(key) - 1 < min_hits_) {
            return;
        }
        gather_candidates(history, key);
        vote(history, std::min(size_m_, n_max), out);
        if (out.empty()) {
            return;
        }
        const auto fewer = [](const Candidate & a, const Candidate & b) { return a.count < b.count; };
        drafted_from_ = key;
        drafted_value_ = std::max_element(candidates_.begin(), candidates_.end(), fewer)->value;
        out.resize(std::min(out.size(), (size_t) length().value()));
    }

    void learn(int32_t submitted, int32_t accepted, NgramTally &) override {
        length().learn(submitted, accepted, size_m_);
    }

    void clear() override {
        index_.clear();
        keys_.clear();
        values_.clear();
    }

private:
    static constexpr int32_t n_values_max = 4;
    static constexpr int32_t n_young_max = 8;

    struct Key {
        int32_t first_value;       // the others follow from it; -1: none
        DraftLength young_length;  // of drafts from occurrences too young to be counted
    };

    struct Value {
        int32_t start;  // its m tokens, where they occurred last
        int32_t count;
        DraftLength length;
        int32_t next;   // of the same key; -1: none
    };

    struct Candidate {
        int32_t start;
        int32_t count;
        int32_t value;  // -1: a young occurrence
    };

    // Of the last draft's origin.
    DraftLength & length() {
        return drafted_value_ < 0 ? keys_[drafted_from_].young_length : values_[drafted_value_].length;
    }

    // The m tokens from history[start] on have followed a key.
    void count_value(const Tokens & history, int32_t key, int32_t start) {
        const auto same = [&](const Value & value) {
            return std::equal(history.begin() + start, history.begin() + start + size_m_, history.begin() + value.start);
        };
        int32_t n_values = 0;
        int32_t rarest = -1;
        for (int32_t v = keys_[key].first_value; v >= 0; v = values_[v].next) {
            Value & value = values_[v];
            if (same(value)) {
                ++value.count;
                value.start = start;
                return;
            }
            ++n_values;
            if (rarest < 0 || value.count < values_[rarest].count ||
                (value.count == values_[rarest].count && value.start < values_[rarest].start)) {
                rarest = v;
            }
        }
        if (n_values < n_values_max) {
            values_.push_back({ start, 1, DraftLength(size_m_), keys_[key].first_value });
            keys_[key].first_value = (int32_t) values_.size() - 1;
        } else {
            values_[rarest] = { start, 1, DraftLength(size_m_), values_[rarest].next };
        }
    }

    void gather_candidates(const Tokens & history, int32_t key) {
        candidates_.clear();
        const int32_t end = (int32_t) history.size() - 1;
        int32_t at = index_.before(end);
        for (int32_t n = 0; n < n_young_max && at >= 0 && at + size_m_ > end; ++n, at = index_.before(at)) {
            candidates_.push_back({ at + 1, 1, -1 });
        }
        for (int32_t v = keys_[key].first_value; v >= 0; v = values_[v].next) {
            candidates_.push_back({ values_[v].start, values_[v].count, v });
        }
    }

    // Appends token by token what most candidates say, if that is at least twice what all others say. Those remain that
    // agreed to the end.
    void vote(const Tokens & history, int32_t n_max, Tokens & out) {
        const auto next = [&](const Candidate & c) {
            const size_t at = c.start + out.size();
            return at < history.size() ? history[at] : out[at - history.size()];
        };
        while ((int32_t) out.size() < n_max) {
            int32_t total = 0;
            int32_t most = 0;
            Token best = -1;
            for (const Candidate & c : candidates_) {
                total += c.count;
                const Token token = next(c);
                if (token == best) {
                    continue;
                }
                int32_t count = 0;
                for (const Candidate & other : candidates_) {
                    count += next(other) == token ? other.count : 0;
                }
                if (count > most) {
                    most = count;
                    best = token;
                }
            }
            if (most == 0 || most < 2 * (total - most)) {
                return;
            }
            candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(),
                                             [&](const Candidate & c) { return next(c) != best; }),
                              candidates_.end());
            out.push_back(best);
        }
    }

    NgramIndex index_;
    int32_t size_m_;
    int32_t min_hits_;
    std::vector<Key> keys_;
    std::vector<Value> values_;
    std::vector<Candidate> candidates_;  // of the draft that is being made
    int32_t drafted_from_ = 0;           // key and value of the last one
    int32_t drafted_value_ = -1;
};

}  // namespace pyspec
