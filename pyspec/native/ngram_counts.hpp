// How often which token followed which n-gram, for n-grams of one to four tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "ngram_hash.hpp"

namespace pyspec {

constexpr int32_t ngram_order_max = 4;

// One to four tokens; what is left is -1.
using Ngram = std::array<Token, ngram_order_max>;

// `end` is a pointer or an iterator behind the n-gram's last token.
template <typename Iterator>
inline Ngram ngram_before(Iterator end, int32_t order) {
    Ngram ngram;
    ngram.fill(-1);
    std::copy(end - order, end, ngram.begin());
    return ngram;
}

class NgramCounts {
public:
    struct Entry {
        Ngram ngram;
        int64_t total;     // of all counts
        Token best;        // most frequent; of several the one that got there last
        int32_t n_best;    // its count
        int32_t newest;    // successor, from which the others follow
    };

    struct Successor {
        int32_t entry;
        Token token;
        int32_t count;
        int32_t next;      // of the same entry; -1: none
    };

    const std::vector<Entry> & entries() const { return entries_; }
    const Successor & successor(int32_t i) const { return successors_[i]; }

    void clear() { *this = NgramCounts(); }

    // Null where the n-gram never occurred.
    const Entry * find(const Ngram & ngram) const {
        const uint32_t found = entry_slots_.empty() ? 0 : entry_slots_[entry_slot(ngram)];
        return found == 0 ? nullptr : &entries_[found - 1];
    }

    // How often `token` followed.
    int32_t count(const Entry & entry, Token token) const {
        const uint32_t found = successor_slots_[successor_slot((int32_t) (&entry - entries_.data()), token)];
        return found == 0 ? 0 : successors_[found - 1].count;
    }

    // `token` followed n more times. Counts end at the largest int32. Returns false if it had never followed before.
    bool add(const Ngram & ngram, Token token, int32_t n = 1) {
        const int32_t e = entry_for(ngram);
        Entry & entry = entries_[e];
        if (2 * (successors_.size() + 1) > successor_slots_.size()) {
            grow_successors();
        }
        uint32_t & slot = successor_slots_[successor_slot(e, token)];
        const bool known = slot != 0;
        if (!known) {
            successors_.push_back({ e, token, 0, entry.newest });
            slot = (uint32_t) successors_.size();
            entry.newest = (int32_t) successors_.size() - 1;
        }
        int32_t & count = successors_[slot - 1].count;
        n = std::min(n, std::numeric_limits<int32_t>::max() - count);
        count += n;
        entry.total += n;
        if (count >= entry.n_best) {
            entry.best = token;
            entry.n_best = count;
        }
        return known;
    }

    // All n-grams of orders low..high that end before history[i], with history[i] behind them.
    void add_all(const Tokens & history, size_t i, int32_t low = 1, int32_t high = ngram_order_max) {
        for (int32_t order = low; order <= high && (size_t) order <= i; ++order) {
            add(ngram_before(history.begin() + i, order), history[i]);
        }
    }

    void merge(const NgramCounts & other) {
        for (const Entry & entry : other.entries_) {
            for (int32_t i = entry.newest; i >= 0; i = other.successors_[i].next) {
                add(entry.ngram, other.successors_[i].token, other.successors_[i].count);
            }
        }
    }

private:
    static uint64_t hash_of(const Ngram & ngram) {
        const auto pair = [&](int i) { return (uint64_t) (uint32_t) ngram[i] << 32 | (uint32_t) ngram[i + 1]; };
        return mix(mix(pair(0)) ^ pair(2));
    }

    static uint64_t hash_of(int32_t entry, Token token) {
        return mix((uint64_t) (uint32_t) entry << 32 | (uint32_t) token);
    }

    // Where it is, or the free place it would take.
    size_t entry_slot(const Ngram & ngram) const {
        const size_t mask = entry_slots_.size() - 1;
        size_t at = hash_of(ngram) & mask;
        while (entry_slots_[at] != 0 && entries_[entry_slots_[at] - 1].ngram != ngram) {
            at = (at + 1) & mask;
        }
        return at;
    }

    size_t successor_slot(int32_t entry, Token token) const {
        const size_t mask = successor_slots_.size() - 1;
        size_t at = hash_of(entry, token) & mask;
        while (successor_slots_[at] != 0) {
            const Successor & s = successors_[successor_slots_[at] - 1];
            if (s.entry == entry && s.token == token) {
                break;
            }
            at = (at + 1) & mask;
        }
        return at;
    }

    int32_t entry_for(const Ngram & ngram) {
        if (2 * (entries_.size() + 1) > entry_slots_.size()) {
            grow_entries();
        }
        uint32_t & slot = entry_slots_[entry_slot(ngram)];
        if (slot == 0) {
            entries_.push_back({ ngram, 0, -1, 0, -1 });
            slot = (uint32_t) entries_.size();
        }
        return (int32_t) slot - 1;
    }

    void grow_entries() {
        entry_slots_.assign(std::max<size_t>(1024, 2 * entry_slots_.size()), 0);
        for (size_t i = 0; i < entries_.size(); ++i) {
            entry_slots_[entry_slot(entries_[i].ngram)] = (uint32_t) i + 1;
        }
    }

    void grow_successors() {
        successor_slots_.assign(std::max<size_t>(1024, 2 * successor_slots_.size()), 0);
        for (size_t i = 0; i < successors_.size(); ++i) {
            successor_slots_[successor_slot(successors_[i].entry, successors_[i].token)] = (uint32_t) i + 1;
        }
    }

    std::vector<Entry> entries_;
    std::vector<Successor> successors_;
    std::vector<uint32_t> entry_slots_;      // index and one; 0: free. A power of two, at most half full.
    std::vector<uint32_t> successor_slots_;
};

}  // namespace pyspec
