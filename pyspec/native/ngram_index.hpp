// Where in a sequence each of its n-grams has occurred: all of them, without a scan.
//
// Every distinct n-gram of the sequence is a key, numbered in the order of first occurrence. A hash table leads from the
// n tokens to the key; occurrences of one key are chained from each to the one before it. Tokens are compared, not
// only hashes, so an occurrence is one. An occurrence is named by the index of its last token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ngram_hash.hpp"

namespace pyspec {

class NgramIndex {
public:
    explicit NgramIndex(int32_t n) : n_(n), hash_(n) {}

    int32_t n() const { return n_; }

    void clear() { *this = NgramIndex(n_); }

    // Takes in the next token, history[i], where i is how many it has taken in so far.
    void append(const Tokens & history, size_t i) {
        hash_.append(history, i, n_);
        int32_t key = -1;
        int32_t before = -1;
        if (i + 1 >= (size_t) n_) {
            key = find_or_add(history, i, hash_.value());
            before = keys_[key].last;
            keys_[key].last = (int32_t) i;
            ++keys_[key].n_seen;
        }
        key_of_.push_back(key);
        before_.push_back(before);
    }

    int32_t n_keys() const { return (int32_t) keys_.size(); }

    // The key whose occurrence ends at history[end]; -1 where fewer than n tokens have come.
    int32_t key_of(size_t end) const { return key_of_[end]; }

    // The occurrence before that one; -1: it is the first.
    int32_t before(size_t end) const { return before_[end]; }

    // How often a key has occurred.
    int32_t n_seen(int32_t key) const { return keys_[key].n_seen; }

private:
    struct Key {
        uint64_t hash;
        int32_t last;    // its newest occurrence; -1 only while it is being added
        int32_t n_seen;
    };

    int32_t find_or_add(const Tokens & history, size_t end, uint64_t hash) {
        if (2 * (keys_.size() + 1) > slots_.size()) {
            grow();
        }
        const size_t mask = slots_.size() - 1;
        size_t at = hash & mask;
        for (; slots_[at] != 0; at = (at + 1) & mask) {
            const Key & key = keys_[slots_[at] - 1];
            if (key.hash == hash && same_tokens(history, key.last, end)) {
                return (int32_t) slots_[at] - 1;
            }
        }
        keys_.push_back({ hash, -1, 0 });
        slots_[at] = (uint32_t) keys_.size();
        return (int32_t) keys_.size() - 1;
    }

    bool same_tokens(const Tokens & history, size_t a, size_t b) const {
        const auto last = history.begin() + a + 1;
        return std::equal(last - n_, last, history.begin() + b + 1 - n_);
    }

    void grow() {
        std::vector<uint32_t> larger(std::max<size_t>(1024, 2 * slots_.size()), 0);
        const size_t mask = larger.size() - 1;
        for (size_t key = 0; key < keys_.size(); ++key) {
            size_t at = keys_[key].hash & mask;
            while (larger[at] != 0) {
                at = (at + 1) & mask;
            }
            larger[at] = (uint32_t) key + 1;
        }
        slots_.swap(larger);
    }

    int32_t n_;
    RollingHash hash_;
    std::vector<uint32_t> slots_;  // number of a key and one; 0: free. A power of two, at most half full.
    std::vector<Key> keys_;
    std::vector<int32_t> key_of_;  // by token
    std::vector<int32_t> before_;
};

}  // namespace pyspec
