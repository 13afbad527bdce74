// Noise for choosing tokens at random that is a function of seed, position and token, and of nothing else.
//
// The largest of logit + Gumbel noise is a draw from the softmax of the logits (Gumbel, "Statistical Theory of Extreme
// Values", 1954; Maddison, Tarlow, Minka, "A* Sampling", 2014). As the noise needs no state, whoever knows the seed can
// add the same noise to logits of its own: two models that nearly agree then nearly always draw the same token.
//
// The random bits of a token are the output with that token's number of a SplitMix64 generator (Steele, Lea, Flood,
// "Fast Splittable Pseudorandom Number Generators", 2014) whose state is made of seed, position and stream.
#pragma once

#include <llama.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace pyspec {

class CoupledNoise {
  public:
    // position: of the token in its text. stream: noises that have nothing to do with each other.
    CoupledNoise(uint32_t seed, int64_t position, uint32_t stream)
        : state_(mix(mix(mix(seed + gamma) + (uint64_t) position) + stream)) {}

    // A standard Gumbel variable.
    double of(int32_t token) const {
        const double u = ((double) (bits(token) >> 11) + 0.5) * 0x1p-53;
        return -std::log(-std::log(u));
    }

    // The candidate whose logit and noise add up to most; -1: all of them are -inf or NaN.
    ptrdiff_t pick(const llama_token_data * candidates, size_t n) const {
        ptrdiff_t at = -1;
        double best = -INFINITY;
        for (size_t i = 0; i < n; ++i) {
            const double logit = candidates[i].logit;
            if (!(logit > -INFINITY) || logit + at_most(candidates[i].id) < best) {
                continue;
            }
            const double score = logit + of(candidates[i].id);
            if (at < 0 || score > best) {
                best = score;
                at = (ptrdiff_t) i;
            }
        }
        return at;
    }

  private:
    static constexpr uint64_t gamma = 0x9e3779b97f4a7c15u;
    uint64_t state_;

    static uint64_t mix(uint64_t z) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

    uint64_t bits(int32_t token) const { return mix(state_ + ((uint64_t) token + 1) * gamma); }

    // No less than the noise, without a logarithm: -log(u) is at least 1 - u, and 1 - u at least 2^-(z + 1) where the
    // complement of u begins with z zero bits. Most candidates are left behind with that.
    double at_most(int32_t token) const {
        constexpr double log2 = 0.69314718055994531;
        uint64_t complement = ~bits(token);
        int zeros = 0;
        while (zeros < 53 && !(complement >> 63)) {
            complement <<= 1;
            ++zeros;
        }
        return (zeros + 1) * log2 + 1e-9;
    }
};

}  // namespace pyspec
