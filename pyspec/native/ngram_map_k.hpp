// ngram-map-k: as ngram-simple, with a draft length for each n-gram.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ngram_length.hpp"
#include "ngram_simple.hpp"

namespace pyspec {

class MapKDrafter : public NgramDrafter {
public:
    MapKDrafter(int32_t size_n, int32_t size_m, int32_t min_hits)
        : index_(size_n), size_m_(size_m), min_hits_(min_hits) {}

    void extend(const Tokens & history, size_t from) override {
        for (size_t i = from; i < history.size(); ++i) {
            index_.append(history, i);
        }
        lengths_.resize(index_.n_keys(), DraftLength(size_m_));
    }

    void draft(const Tokens & history, int32_t n_max, Tokens & out) override {
        const int32_t key = index_.key_of(history.size() - 1);
        if (key < 0 || index_.n_seen(key) - 1 < min_hits_) {
            return;
        }
        const int32_t n = std::min(lengths_[key].value(), n_max);
        copy_continuation(history, best_continuation(index_, history, n), n, out);
        drafted_from_ = key;
    }

    void learn(int32_t submitted, int32_t accepted, NgramTally &) override {
        lengths_[drafted_from_].learn(submitted, accepted, size_m_);
    }

    void clear() override {
        index_.clear();
        lengths_.clear();
    }

private:
    NgramIndex index_;
    int32_t size_m_;
    int32_t min_hits_;
    std::vector<DraftLength> lengths_;  // by key
    int32_t drafted_from_ = 0;          // the key of the last draft
};

}  // namespace pyspec
