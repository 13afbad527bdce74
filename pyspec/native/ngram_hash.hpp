// Hashes of n-grams.
#pragma once

#include <cstdint>
#include <vector>

namespace pyspec {

using Token = int32_t;  // llama_token; what is built on this header needs nothing of llama.cpp
using Tokens = std::vector<Token>;

// Spreads every bit of x over the whole result (the finalizer of MurmurHash3).
inline uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ (x >> 33);
}

// The hash of the last n tokens of a sequence, in constant time for each token that is appended.
class RollingHash {
public:
    explicit RollingHash(int32_t n) {
        for (int32_t i = 0; i < n; ++i) {
            leaving_weight_ *= base;
        }
    }

    void clear() { sum_ = 0; }

    // For the first n tokens.
    void push(Token entering) { sum_ = sum_ * base + weight(entering); }

    // From then on: `leaving` is the token n places before `entering`.
    void slide(Token entering, Token leaving) {
        sum_ = sum_ * base + weight(entering) - weight(leaving) * leaving_weight_;
    }

    // history[at] enters, whichever of the two it takes.
    void append(const Tokens & history, size_t at, int32_t n) {
        if (at < (size_t) n) {
            push(history[at]);
        } else {
            slide(history[at], history[at - n]);
        }
    }

    uint64_t value() const { return mix(sum_); }

private:
    static constexpr uint64_t base = 0x9e3779b97f4a7c15ULL;

    static uint64_t weight(Token token) { return (uint64_t) (uint32_t) token + 1; }

    uint64_t leaving_weight_ = 1;
    uint64_t sum_ = 0;
};

}  // namespace pyspec
