// Choosing tokens from a row of logits: the best one, the k best, and log-probabilities; all of a row, or what a mask
// of one bit per token allows (32 tokens a word, the lowest bit first).
//
// A row is n_vocab floats, up to a megabyte, and is read once per verified token: these loops are
// memory-bound and written so that the compiler turns the inner one into vector instructions.
// Ties go to the lower token id everywhere, so that a result never depends on the instruction set.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define PYSPEC_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define PYSPEC_VECTOR_CLONES
#endif

namespace pyspec {

struct Scored {
    int32_t id;
    float logit;
};

// Better logit first; of equal ones the lower id.
inline bool ranks_before(const Scored & a, const Scored & b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

constexpr int32_t select_block = 1024;

inline bool allows(const uint32_t * mask, int32_t id) {
    return (mask[id / 32] >> (id % 32)) & 1u;
}

// Calls f with each id below n that a mask allows, ascending.
template <typename F>
inline void for_each_allowed(const uint32_t * mask, int32_t n, F && f) {
    for (int32_t first = 0; first < n; first += 32) {
        uint32_t bits = mask[first / 32];
        if (n - first < 32) {
            bits &= (1u << (n - first)) - 1u;
        }
        for (int32_t id = first; bits != 0; ++id, bits >>= 1) {
            if (bits & 1u) {
                f(id);
            }
        }
    }
}

// The largest value of x[0..n); NaN is never the largest. -inf for n == 0.
PYSPEC_VECTOR_CLONES
inline float largest(const float * x, int32_t n) {
    constexpr int32_t lanes = 64;
    float lane[lanes];
    for (int32_t j = 0; j < lanes; ++j) {
        lane[j] = -std::numeric_limits<float>::infinity();
    }
    int32_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        for (int32_t j = 0; j < lanes; ++j) {
            lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
        }
    }
    float best = -std::numeric_limits<float>::infinity();
    for (int32_t j = 0; j < lanes; ++j) {
        best = lane[j] > best ? lane[j] : best;
    }
    for (; i < n; ++i) {
        best = x[i] > best ? x[i] : best;
    }
    return best;
}

// Index of the largest value, the lowest one of equals; -1 when no value is above -inf.
inline int32_t argmax(const float * x, int32_t n) {
    float best = -std::numeric_limits<float>::infinity();
    int32_t at = -1;
    for (int32_t b = 0; b < n; b += select_block) {
        const float m = largest(x + b, std::min(select_block, n - b));
        if (m > best) {
            best = m;
            at = b;
        }
    }
    if (at < 0) {
        return -1;
    }
    while (x[at] != best) {
        ++at;
    }
    return at;
}

// The same among the ids a mask allows.
inline int32_t argmax_allowed(const float * x, const uint32_t * mask, int32_t n) {
    float best = -std::numeric_limits<float>::infinity();
    int32_t at = -1;
    for_each_allowed(mask, n, [&](int32_t id) {
        if (x[id] > best) {
            best = x[id];
            at = id;
        }
    });
    return at;
}

// The k best of x[0..n) in ranking order (fewer when fewer are above -inf or not NaN), of those a mask allows if there
// is one. A heap holds the k best seen; blocks whose largest value cannot enter it are skipped unread.
inline void top_k(const float * x, int32_t n, int32_t k, std::vector<Scored> & out, const uint32_t * mask = nullptr) {
    out.clear();
    if (k <= 0) {
        return;
    }
    const auto worst_on_top = [](const Scored & a, const Scored & b) { return ranks_before(a, b); };
    float enter = -std::numeric_limits<float>::infinity();  // a value has to be above this one
    for (int32_t b = 0; b < n; b += select_block) {
        const int32_t end = std::min(b + select_block, n);
        if (!(largest(x + b, end - b) > enter)) {
            continue;
        }
        for (int32_t i = b; i < end; ++i) {
            if (!(x[i] > enter) || (mask != nullptr && !allows(mask, i))) {
                continue;
            }
            if ((int32_t) out.size() == k) {
                std::pop_heap(out.begin(), out.end(), worst_on_top);
                out.back() = { i, x[i] };
            } else {
                out.push_back({ i, x[i] });
            }
            std::push_heap(out.begin(), out.end(), worst_on_top);
            if ((int32_t) out.size() == k) {
                enter = out.front().logit;
            }
        }
    }
    std::sort(out.begin(), out.end(), ranks_before);
}

// log(sum(exp(x))) of a row, in double: the normaliser of its log-probabilities.
inline double log_sum_exp(const float * x, int32_t n) {
    const float m = largest(x, n);
    if (!std::isfinite(m)) {
        return m;
    }
    double sum = 0.0;
    for (int32_t i = 0; i < n; ++i) {
        sum += std::exp((double) (x[i] - m));
    }
    return m + std::log(sum);
}

// Probability of the first of some best logits among the first ten of them (llama.cpp's draft confidence:
// a softmax over the ten best candidates, common/speculative.cpp).
constexpr int32_t n_confidence = 10;

inline float confidence(const std::vector<Scored> & best) {
    float sum = 0.0f;
    for (size_t i = 0; i < std::min(best.size(), (size_t) n_confidence); ++i) {
        sum += std::exp(best[i].logit - best[0].logit);
    }
    return best.empty() ? 0.0f : 1.0f / sum;
}

}  // namespace pyspec
