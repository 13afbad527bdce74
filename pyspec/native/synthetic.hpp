// Acceptance drawn at random instead of compared: for benchmarks of everything but the draft's quality.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace pyspec {

class SyntheticAcceptance {
  public:
    // conditional[i]: chance that the i-th drafted token is accepted, given that those before it were. Empty: off.
    void set(const std::vector<float> & conditional, uint32_t seed) {
        conditional_ = conditional;
        rng_.seed(seed);
    }

    bool active() const { return !conditional_.empty(); }

    bool accepts(int32_t position) {
        const float u = std::uniform_real_distribution<float>(0.0f, 1.0f)(rng_);
        return position < (int32_t) conditional_.size() && u < conditional_[position];
    }

  private:
    std::vector<float> conditional_;
    std::mt19937 rng_;
};

}  // namespace pyspec
