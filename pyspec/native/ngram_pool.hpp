// A table of n-grams and the token that followed each: the newest ones, and never more than fits.
//
// Two generations: what is new goes into the young one; when that is full it becomes the old one, and what was in the old
// one is gone. So at any time the newest n-grams are there, at least as many as one generation holds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "ngram_hash.hpp"

namespace pyspec {

class NgramPool {
public:
    // `capacity`: n-grams of one generation.
    explicit NgramPool(size_t capacity = 1 << 19) : capacity_(capacity) {}

    // The token behind the n-gram with this hash (64 bits, all of them compared), or -1.
    Token find(uint64_t hash) const {
        const Token token = young_.find(hash);
        return token >= 0 ? token : old_.find(hash);
    }

    void put(uint64_t hash, Token token) {
        if (young_.n_used() == capacity_) {
            std::swap(old_, young_);
            young_.clear();
        }
        young_.put(hash, token);
    }

    void clear() {
        young_.clear();
        old_.clear();
    }

private:
    class Generation {
    public:
        size_t n_used() const { return n_used_; }

        void clear() { *this = Generation(); }

        Token find(uint64_t hash) const { return slots_.empty() ? -1 : slots_[slot_of(hash)].token; }

        void put(uint64_t hash, Token token) {
            if (2 * (n_used_ + 1) > slots_.size()) {
                grow();
            }
            Slot & slot = slots_[slot_of(hash)];
            n_used_ += slot.token < 0;
            slot = { hash, token };
        }

    private:
        struct Slot {
            uint64_t hash = 0;
            Token token = -1;  // -1: free
        };

        // Where this hash is, or the free place it would take.
        size_t slot_of(uint64_t hash) const {
            const size_t mask = slots_.size() - 1;
            size_t at = hash & mask;
            while (slots_[at].token >= 0 && slots_[at].hash != hash) {
                at = (at + 1) & mask;
            }
            return at;
        }

        void grow() {
            std::vector<Slot> smaller(std::max<size_t>(1024, 2 * slots_.size()));
            smaller.swap(slots_);
            for (const Slot & slot : smaller) {
                if (slot.token >= 0) {
                    slots_[slot_of(slot.hash)] = slot;
                }
            }
        }

        std::vector<Slot> slots_;  // a power of two, at most half full
        size_t n_used_ = 0;
    };

    size_t capacity_;
    Generation young_;
    Generation old_;
};

}  // namespace pyspec
